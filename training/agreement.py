"""The layout exchange: which ranks hold copies of the same.

Placements on a mesh of all ranks say who replicates what. A plain tensor, or one on a part of the ranks, says nothing
of the others, so ranks tell each other what they hold, once for each structure.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec
import numpy as np
from blake3 import blake3

from cairn.training.leaves import TensorLeaf
from cairn.training.ranks import COORDINATOR, Ranks

# What the coordinator's answer to a list of names is shared under, before the digest of the list.
_ANSWER = b"holders of "


def names_to_agree(leaves: Sequence[TensorLeaf], ranks: int) -> dict[int, int]:
    """By number of the leaf, what stands for it in the exchange: those whose placements do not tell of all ranks.

    Ranks have the same name for a leaf if and only if they hold the same boxes of the same tensor.
    """
    return {
        number: _name(leaf)
        for number, leaf in enumerate(leaves)
        if leaf.told_ranks is not None and leaf.told_ranks < ranks and leaf.tied_to is None
    }


def _name(leaf: TensorLeaf) -> int:
    boxes = [(part.box.offsets, part.box.lengths) for holding in leaf.holdings for part in holding.parts]
    form = msgspec.msgpack.encode((leaf.key.scope, leaf.key.path, leaf.dtype, leaf.shape, boxes))
    return int.from_bytes(blake3(form).digest(length=8), "big")


def exchange(ranks: Ranks, task: str, names: Sequence[int], seconds: float) -> dict[int, tuple[int, int]]:
    """For each name: this rank's index among those that hold the same, and their number. All ranks take part.

    The coordinator alone reads all lists: if thousands of ranks read those of thousands, nobody else would be served.

    Raises:
        SaveFailed: a rank failed, is lost, or does not come in time.
    """
    if ranks.count == 1:
        return dict.fromkeys(names, (0, 1))
    digest = tell_names(ranks, task, names)
    if ranks.coordinates:
        told = ranks.wait(task, "names", range(ranks.count), seconds)
        members: dict[bytes, list[int]] = {}
        for rank in range(ranks.count):
            members.setdefault(told[rank], []).append(rank)
        lists = [msgspec.msgpack.decode(ranks.shared(task, one), type=list[int]) for one in members]
        for one, answer in zip(members, _holders(lists, list(members.values())), strict=True):
            ranks.share(task, _ANSWER + one, answer)
        ranks.tell(task, "sharing", b"")
    ranks.wait(task, "sharing", [COORDINATOR], seconds)
    groups, of = msgspec.msgpack.decode(ranks.shared(task, _ANSWER + digest), type=tuple[list[list[int]], list[int]])
    places = [(bisect_left(group, ranks.rank), len(group)) for group in groups]
    return {name: places[number] for name, number in zip(dict.fromkeys(names), of, strict=True)}


def tell_names(ranks: Ranks, task: str, names: Sequence[int]) -> bytes:
    """Leave this rank's names, and the digest of the list, which many ranks may have alike."""
    encoded = msgspec.msgpack.encode(list(dict.fromkeys(names)))
    digest = blake3(encoded).digest()
    ranks.share(task, digest, encoded)
    ranks.tell(task, "names", digest)
    return digest


def _holders(lists: Sequence[list[int]], members: Sequence[list[int]]) -> Iterator[bytes]:
    """For each list of names: the groups of ranks that hold the same, and the group of each name. Encoded.

    Args:
        members: the ranks that have told each list, ascending.
    """
    names = np.array([name for one in lists for name in one], np.uint64)
    starts = np.cumsum([0, *map(len, lists)])
    owners = np.repeat(np.arange(len(lists)), np.diff(starts))
    order = np.argsort(names, kind="stable")
    firsts = np.flatnonzero(np.diff(names[order], prepend=names[order][:1] + np.uint64(1)))
    counts = np.diff(firsts, append=len(order))
    # A group is a set of lists. One for each list by itself; those of names in several lists come after.
    groups, group_of = list(members), owners.copy()
    known: dict[bytes, int] = {}
    for first, count in zip(firsts[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True):
        at = order[first : first + count]
        number = known.setdefault(owners[at].tobytes(), len(groups))
        if number == len(groups):
            groups.append(sorted(rank for one in owners[at].tolist() for rank in members[one]))
        group_of[at] = number
    for start, end in pairwise(starts.tolist()):
        numbers, of = np.unique(group_of[start:end], return_inverse=True)
        yield msgspec.msgpack.encode(([groups[number] for number in numbers.tolist()], of.tolist()))
