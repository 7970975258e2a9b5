"""Entry point. A commit that changes nothing is answered from memory, before anything heavy is imported."""

import gc
import os
import sys
from contextlib import suppress

from cairn.cli.memo import recall


def main() -> None:
    """Run the command line and exit."""
    _open_standard_streams()
    arguments = sys.argv[1:]
    code = recall(arguments) if "commit" in arguments else None
    if code is None:
        # A command is over before looking for cycles pays.
        gc.set_threshold(100_000)
        from cairn.cli.app import run

        code = run(arguments)
    # What must last is durable by now. Taking the interpreter apart, module by module, would cost 15 ms.
    with suppress(OSError):
        sys.stdout.flush()
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(code)


def _open_standard_streams() -> None:
    """Daemons may start us without them; a file of the store must never get number 1 or 2."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
