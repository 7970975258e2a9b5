"""Words of the domain, without any I/O.

* **id** - a public name (random, or derived from content with a secret key).
* **digest** - the secret keyed hash of a plaintext; its `repr` never shows it.
* **canonical encoding** - the one byte string that stands for a value.
* **limit** - a named bound with its reason; parsers check it before they allocate.

Knows nothing of files, keys, tensors or networks.
"""
