"""Bytes in, bytes out, by content.

* **backend** - where objects live (`backends/`).
* **sealed chunk** - a chunk or page, encoded, encrypted and bound to its content id.
* **pack** - an immutable object that holds many sealed chunks, with a sealed footer that lists them.
* **index piece** - an immutable, sorted map id -> (pack, offset, stored length).
* **chunk store** - turns plaintext into ids and back, storing each distinct content once.

Knows no tensor, no file, no name, and nothing of the log that says which packs are in force.
"""
