"""Places where objects live.

* **object** - immutable bytes under a name; written once, whole, or not at all.
* **backend** - what can create, read, list and delete objects (`contract.py` lists what it owes).
* **wrapper** - a backend around a backend that adds one thing: faults, retries, a cache.

Knows nothing of keys, chunks or logs. A backend never retries by itself; those of
remote storage repeat single requests, as long as `patience.py` lets them.
"""
