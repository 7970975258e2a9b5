"""The layout exchange: which ranks hold copies of the same.

Placements on a mesh of all ranks say who replicates what. A plain tensor, or one on a part of the ranks, says nothing
of the others, so ranks tell each other what they hold, once for each structure.
"""

from collections.abc import Sequence

import msgspec
from blake3 import blake3

from cairn.training.leaves import TensorLeaf
from cairn.training.ranks import COORDINATOR, Ranks


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

    Raises:
        SaveFailed: a rank failed, is lost, or does not come in time.
    """
    if ranks.count == 1:
        return dict.fromkeys(names, (0, 1))
    encoded = msgspec.msgpack.encode(list(names))
    digest = blake3(encoded).digest()
    ranks.share(task, digest, encoded)
    ranks.tell(task, "names", digest)
    if ranks.coordinates:
        told = ranks.wait(task, "names", range(ranks.count), seconds)
        sharing: dict[bytes, list[int]] = {}
        for rank in range(ranks.count):
            sharing.setdefault(told[rank], []).append(rank)
        ranks.tell(task, "sharing", msgspec.msgpack.encode(sharing))
    answer = ranks.wait(task, "sharing", [COORDINATOR], seconds)[COORDINATOR]
    holders: dict[int, list[int]] = {name: [] for name in names}
    for one, members in msgspec.msgpack.decode(answer, type=dict[bytes, list[int]]).items():
        for name in dict.fromkeys(msgspec.msgpack.decode(ranks.shared(task, one), type=list[int])):
            if name in holders:
                holders[name] += members
    return {name: (sorted(found).index(ranks.rank), len(found)) for name, found in holders.items()}
