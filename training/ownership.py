"""Who stores what of a replicated tensor. Pure.

The pieces of a box that `count` ranks hold are dealt out in `count` runs, beginning at a rank that the tensor's name
chooses, so that small tensors spread too. Runs keep neighbouring tiles in one pack.
"""

from blake3 import blake3

from cairn.core.canonical import encode
from cairn.manifests.pieces import Piece, cut_box
from cairn.manifests.schema import Key
from cairn.training.placements import Part


def name_hash(key: Key) -> int:
    """A number that every rank draws alike from a tensor's name."""
    return int.from_bytes(blake3(encode([key.scope, key.path])).digest(length=4), "big")


def deal(
    key: Key, dtype: str, shape: tuple[int, ...], parts: tuple[Part, ...], replica: tuple[int, int]
) -> list[tuple[Part, Piece, bool]]:
    """All pieces of this rank's boxes, and whether this rank is the one to store them.

    Args:
        replica: (index, count) of this rank among those that hold the same boxes; with count 0 index 0 alone stores.
    """
    pieces = [(part, piece) for part in parts for piece in cut_box(dtype, shape, part.box)]
    index, count = replica
    if count == 0:
        return [(part, piece, index == 0) for part, piece in pieces]
    if count == 1:
        return [(part, piece, True) for part, piece in pieces]
    first, total = name_hash(key), len(pieces)
    return [(part, piece, (first + at * count // total) % count == index) for at, (part, piece) in enumerate(pieces)]
