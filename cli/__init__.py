"""The command line: one file a command; parse, one library call, render.

* Data goes to standard output, everything else to standard error.
* Heavy imports stand inside the commands: `cairn --help` starts in a blink.
"""
