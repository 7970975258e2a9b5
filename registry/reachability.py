"""Reachability lists: the ids of all chunks and pages of a checkpoint, readable without any content key."""

from itertools import pairwise

from cairn.core.errors import IntegrityError
from cairn.core.ids import HASH_BYTES, ContentId
from cairn.registry.entries import ObjectRef
from cairn.registry.indexing import read_object
from cairn.registry.opened import OpenStore
from cairn.registry.state import Checkpoint
from cairn.store.crypto.objects import ObjectKind, open_object


def open_list(opened: OpenStore, ref: ObjectRef) -> tuple[bytes, str]:
    """A list's ids one after the other, unchecked, and what to call it.

    Raises:
        IntegrityError: it is missing or damaged.
    """
    what = f"reachability list {ref.object_name('reach')}"
    sealed = read_object(opened, ref, "reach")
    return open_object(opened.secrets.k_index, opened.store, ObjectKind.REACHABILITY, sealed, what), what


def read_reachability(opened: OpenStore, checkpoint: Checkpoint) -> list[ContentId]:
    """Ids, ascending.

    Raises:
        IntegrityError: the list is missing, damaged, or not a sorted list of distinct ids.
    """
    plain, what = open_list(opened, checkpoint.reachability)
    ids = [ContentId(plain[at : at + HASH_BYTES]) for at in range(0, len(plain), HASH_BYTES)]
    if len(plain) % HASH_BYTES or any(a >= b for a, b in pairwise(ids)):
        raise IntegrityError(f"{what} is not a sorted list of ids")
    return ids
