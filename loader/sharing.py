"""Which reader of a host fetches what, when several want the same chunks. Pure.

* **wants** - where the chunks that one reader needs are stored, in the order in which it needs them.
* **extent** - bytes of a pack without a gap, all of which at least two readers want some of. One of those, its
  *owner*, fetches it; the others take it from memory that all share (`loader/ring.py`).

Every reader computes the same extents from the same wants. What is shared is sealed: each reader opens its own.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from cairn.core.errors import IntegrityError
from cairn.core.limits import READ_BYTES_TARGET
from cairn.loader.plan import Batch, Delivery, Part, Placed, ReadPlan, batches_of
from cairn.store.ranges import Range

# A reader is a bit of a number of 64.
READERS_MAX = 32
_PLACE = np.dtype([("pack", "<u8"), ("offset", "<u8"), ("length", "<u8")])
_Places = np.ndarray[tuple[int], np.dtype[np.void]]
_Numbers = np.ndarray[Any, Any]
_Find = Callable[[int, int, int], int | None]


class Extent(msgspec.Struct, frozen=True, gc=False):
    """Bytes of a pack that several readers want, and the reader who fetches them.

    Args:
        readers: bit n is set if reader n wants some of it.
    """

    pack: int
    offset: int
    length: int
    readers: int
    owner: int

    @property
    def end(self) -> int:
        """Offset of the first byte after it."""
        return self.offset + self.length


def encode_wants(plans: Iterable[ReadPlan]) -> bytes:
    """Where one reader's chunks lie, each place once, in the order of the plans: their number (u64), then each."""
    places = dict.fromkeys(
        (part.location.pack, part.location.offset, part.location.length)
        for plan in plans
        for batch in plan.batches
        for delivery in batch.deliveries
        for part in delivery.parts
        if part.location is not None
    )
    return len(places).to_bytes(8, "little") + np.array(list(places), _PLACE).tobytes()


def shared_extents(wants: Sequence[bytes], extent_bytes: int = READ_BYTES_TARGET) -> list[Extent]:
    """What more than one of the readers wants, in the order in which it should be fetched.

    Each reader fetches about as many bytes as the others, what it alone wants included.

    Args:
        wants: of `encode_wants`, by reader; at most `READERS_MAX`.
        extent_bytes: no chunk of an extent begins so many bytes after the extent does.

    Raises:
        IntegrityError: these are no wants.
    """
    if len(wants) > READERS_MAX:
        raise ValueError(f"{len(wants)} readers are over the limit of {READERS_MAX}")
    lists = [_decode(one) for one in wants]
    places, masks, turns = _merged(lists)
    shared = (masks & (masks - 1)) != 0
    alone = [int(places["length"][masks == 1 << reader].sum()) for reader in range(len(lists))]
    return _owned(*_joined(places[shared], masks[shared], turns[shared], extent_bytes), alone)


def _decode(wants: bytes) -> _Places:
    count = int.from_bytes(wants[:8], "little")
    if len(wants) != 8 + count * _PLACE.itemsize:
        raise IntegrityError(f"a list of {count} wanted chunks has {len(wants)} bytes")
    return np.frombuffer(wants, _PLACE, offset=8)


def _merged(lists: Sequence[_Places]) -> tuple[_Places, _Numbers, _Numbers]:
    """Distinct places in the order of the packs, who wants each, and how early: 0 to 1 of its reader's list."""
    places = np.concatenate(lists)
    masks = np.concatenate([np.full(len(one), 1 << reader, np.uint64) for reader, one in enumerate(lists)])
    turns = np.concatenate([np.arange(len(one)) / max(len(one), 1) for one in lists])
    order = np.lexsort((places["length"], places["offset"], places["pack"]))
    places, masks, turns = places[order], masks[order], turns[order]
    first = np.flatnonzero(np.concatenate([[True], places[1:] != places[:-1]])) if len(places) else np.zeros(0, int)
    if not len(first):
        return places, masks, turns
    return places[first], np.bitwise_or.reduceat(masks, first), np.minimum.reduceat(turns, first)


def _joined(places: _Places, masks: _Numbers, turns: _Numbers, extent_bytes: int) -> tuple[_Places, _Numbers]:
    """Extents of places that follow each other without a gap, by turn, and who wants them."""
    if not len(places):
        return places, masks
    ends = places["offset"] + places["length"]
    apart = (places["pack"][1:] != places["pack"][:-1]) | (places["offset"][1:] != ends[:-1])
    runs = np.concatenate([[0], np.cumsum(apart)])
    begins = places["offset"][np.flatnonzero(np.concatenate([[True], apart]))][runs]
    number = (places["offset"] - begins) // extent_bytes
    cut = np.concatenate([[True], apart | (number[1:] != number[:-1])])
    first = np.flatnonzero(cut)
    extents = places[first].copy()
    extents["length"] = np.add.reduceat(places["length"], first)
    order = np.argsort(np.minimum.reduceat(turns, first), kind="stable")
    return extents[order], np.bitwise_or.reduceat(masks, first)[order]


def _owned(extents: _Places, masks: _Numbers, fetched: list[int]) -> list[Extent]:
    """Give each extent to whoever of its readers fetches least so far."""
    found = []
    readers_of = {mask: [n for n in range(len(fetched)) if mask >> n & 1] for mask in set(masks.tolist())}
    for (pack, offset, length), mask in zip(extents.tolist(), masks.tolist(), strict=True):
        owner = min(readers_of[mask], key=fetched.__getitem__)
        fetched[owner] += length
        found.append(Extent(pack, offset, length, mask, owner))
    return found


def with_extents(plans: Iterable[ReadPlan], extents: Sequence[Extent], reader: int) -> list[ReadPlan]:
    """The same deliveries, with what lies in a reader's extent taken from there, one batch an extent, in their order.

    What this reader fetches by itself comes in between, evenly.
    """
    find = _finder(extents, reader)
    return [_with_extents(plan, extents, find) for plan in plans]


def _with_extents(plan: ReadPlan, extents: Sequence[Extent], find: _Find) -> ReadPlan:
    shared: dict[int, list[Delivery]] = {}
    alone: list[Placed] = []
    for delivery in (delivery for batch in plan.batches for delivery in batch.deliveries):
        locations = [part.location for part in delivery.parts]
        numbers = {find(at.pack, at.offset, at.length) if at else None for at in locations}
        number = numbers.pop()
        if numbers or number is None:
            alone.append((delivery.group, locations))
        else:
            parts = (Part(p.wanted, p.location, 0, p.location.offset - extents[number].offset)
                     for p in delivery.parts if p.location)  # fmt: skip
            shared.setdefault(number, []).append(Delivery(delivery.group, tuple(parts)))
    taken = [
        Batch((Range(extents[n].pack, extents[n].offset, extents[n].length),), tuple(shared[n]), n)
        for n in sorted(shared)
    ]
    return ReadPlan(tuple(_interleaved(taken, batches_of(alone))))


def _finder(extents: Sequence[Extent], reader: int) -> _Find:
    """Tells the number of the extent of a reader that a place lies in.

    In a faulty index, places overlap, and so do extents; nobody keeps another's extent for this reader.
    """
    mine = [n for n, extent in enumerate(extents) if extent.readers >> reader & 1]
    order = sorted(mine, key=lambda n: (extents[n].pack, extents[n].offset))
    starts = [(extents[n].pack, extents[n].offset) for n in order]

    def find(pack: int, offset: int, length: int) -> int | None:
        at = bisect_right(starts, (pack, offset)) - 1
        if at < 0:
            return None
        extent = extents[order[at]]
        return order[at] if extent.pack == pack and offset + length <= extent.end else None

    return find


def _interleaved(some: Sequence[Batch], others: Sequence[Batch]) -> list[Batch]:
    """Both, each in its order, each spread over the whole."""
    turns = [(n / len(one), kind, n) for kind, one in enumerate((some, others)) for n in range(len(one))]
    return [(some, others)[kind][n] for _, kind, n in sorted(turns)]
