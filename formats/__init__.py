"""Other people's files, read as data, and containers of theirs to be filled.

* **source** - positional bytes of one file.
* **parsed file** - where each tensor of a file lies; everything else is literal bytes.
* **joined state** - tensors in pieces over many files of a folder, and plain values, by name.
* **restricted reader** - the one pickle interpreter: a closed list of names, budgets for everything.

Knows no store and no torch for reading: nothing of a foreign file is ever executed.
"""
