"""What happens to a save that is under way when the program ends.

Python waits for no daemon thread, and ignores errors of functions that run at exit; so the last save of a run could
vanish with exit code 0. Open checkpointers are closed at exit, within their bound, and a failure ends the process with
code 1 after everybody else's exit functions have run.
"""

import atexit
import logging
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cairn.training.checkpointer import Checkpointer

log = logging.getLogger("cairn.training")
# Strong, since one that nobody holds any more may yet have a failure to tell.
_open: "set[Checkpointer]" = set()
_failed: list[str] = []


def close_at_exit(checkpointer: "Checkpointer") -> None:
    """Close a checkpointer when the interpreter ends, unless it is closed by then."""
    _open.add(checkpointer)


def forget_at_exit(checkpointer: "Checkpointer") -> None:
    """It has been closed."""
    _open.discard(checkpointer)


def _close_all() -> None:
    for checkpointer in list(_open):
        try:
            checkpointer.close()
        except Exception as error:
            log.error("the last save failed: %s", error)
            _failed.append(str(error))


def _end_with_failure() -> None:
    if _failed:
        logging.shutdown()
        os._exit(1)


# Functions run in reverse order: the one that ends the process is registered when Cairn is imported, hence runs late.
atexit.register(_end_with_failure)
atexit.register(_close_all)
