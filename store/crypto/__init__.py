"""Keys and sealing; the only place that touches a cipher.

* **tenant keys** - what is derived from the tenant secret: hashing, naming and sealing of content.
* **store keys** - random keys of one store, each for a class of objects (index, log, checkpoint).
* **root key** - wraps the others and nothing else; a key file or a passphrase yields it.
* **component key pair** - X25519; sealing a component needs the public half, reading the private half.
"""
