"""What a checkpoint is, as values.

* **tensor** - logical: key, dtype, global shape; stored as tiles of its canonical grid, or as regions.
* **box** - offsets and lengths, an axis-aligned area of a tensor.
* **page** - a piece of a manifest, content-addressed, so that equal pages are stored once.
* **component root** - the list of a component's pages; **body** - the hashes of the sealed roots.

Knows no file, key, store or name of a model. No I/O.
"""
