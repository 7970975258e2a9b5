"""Folders in and out of a store: what the command line calls.

* **tree** - a file or folder as it lies on disk, scanned once.
* **commit** - a tree becomes a checkpoint; **checkout** - a checkpoint becomes a tree, whole or not at all.
* **export** - a checkpoint becomes files of another format; **state** - a folder of a distributed checkpoint in a tree.
* **recipe** - how a file is put together again from tensors and bytes.

Knows no cipher and no log format.
"""
