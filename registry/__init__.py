"""Names, history and rights.

* **log** - append-only, linked, signed sequence of entries; created one by one, never replaced.
* **fold** - the state that the log's bytes say; a pure function, the same for every client.
* **commit rule** - what the fold demands of an entry that makes something live.
* **session** - what protects a writer's uploads until its commit.
* **ref** - a mutable name in a model: a branch or a tag.

Knows nothing of tensors or files: a checkpoint is an id, some objects and the packs that they rely on.
"""
