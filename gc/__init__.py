"""What a store keeps, what it costs, and whether it is whole.

* **root** - a checkpoint that the log's fold holds: what must stay readable (`roots.py`).
* **mark** - the ids of all chunks and pages that roots need, taken from their reachability lists (`counted.py`).
* **usage** - counts and bytes: what is stored, what of it is needed, what interrupted writers left (`usage.py`).
* **scrub** - reading everything again and comparing it with what was committed (`scrub.py`); *quick* reads logs, keys,
  manifests and the directories of packs, *sampled* and *full* open stored chunks as well. It changes nothing.
* **repair** - storing anew what a scrub found damaged, from wherever it is whole (`repair.py`).
* **problem** - one damaged object and one checkpoint that it affects.

Marking and usage need no component key; scrubbing takes digests from the manifests that the keys at hand open.
Knows nothing of folders, file formats or terminals.
"""
