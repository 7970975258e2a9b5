"""Entry point. A commit that changes nothing is answered from memory, before anything heavy is imported."""

import sys

from cairn.cli.memo import recall


def main() -> None:
    """Run the command line and exit."""
    arguments = sys.argv[1:]
    code = recall(arguments) if arguments[:1] == ["commit"] else None
    if code is None:
        from cairn.cli.app import run

        code = run(arguments)
    sys.exit(code)
