"""Entry point. A commit that changes nothing is answered from memory, before anything heavy is imported."""

import gc
import os
import sys

from cairn.cli.memo import recall


def main() -> None:
    """Run the command line and exit."""
    arguments = sys.argv[1:]
    code = recall(arguments) if "commit" in arguments else None
    if code is None:
        # A command is over before looking for cycles pays.
        gc.set_threshold(100_000)
        from cairn.cli.app import run

        code = run(arguments)
    # What must last is durable by now. Taking the interpreter apart, module by module, would cost 15 ms.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
