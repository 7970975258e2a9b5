"""Other people's files, read as data.

* **source** - positional bytes of one file.
* **parsed file** - where each tensor of a file lies; everything else is literal bytes.
* **restricted reader** - the one pickle interpreter: a closed list of names, budgets for everything.

Knows no store and no torch for reading: nothing of a foreign file is ever executed.
"""
