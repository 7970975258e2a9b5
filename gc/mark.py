"""Marking: which chunks and pages the live checkpoints need.

Reachability lists say it without any content key. Anything unreadable stops the marking: what cannot be marked must
not be collected.
"""

from cairn.core.ids import ContentId
from cairn.gc.roots import live_checkpoints
from cairn.registry.opened import OpenStore
from cairn.registry.reachability import read_reachability
from cairn.registry.state import State


def reachable_ids(opened: OpenStore, state: State) -> set[ContentId]:
    """Ids that any live checkpoint needs.

    Raises:
        IntegrityError: a list is missing, damaged, or not sorted.
    """
    marked: set[ContentId] = set()
    for root in live_checkpoints(state):
        marked.update(read_reachability(opened, root.state))
    return marked
