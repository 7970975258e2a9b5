"""Planning reads. Pure: values in, a frozen plan out.

Groups are ordered by where their first chunk lies, so that what was written together is read together. A batch is
what one thread fetches at once: ranges of a pack that lie closer than a gap are joined while the bytes fetched in
vain stay within the amplification limit.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TypeAlias

import msgspec

from cairn.core.errors import MissingData
from cairn.core.ids import Digest, short
from cairn.core.limits import READ_BYTES_TARGET
from cairn.store.chunkstore import Index
from cairn.store.crypto.tenant import ContentKeys
from cairn.store.fills import fill_of
from cairn.store.index import Location
from cairn.store.ranges import Range, join_ranges


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """One chunk: its digest and its plaintext length in bytes."""

    digest: Digest
    length: int


class Group(msgspec.Struct, frozen=True, gc=False):
    """Chunks to be delivered together; `key` is the caller's."""

    key: int
    chunks: tuple[Wanted, ...]

    @property
    def length(self) -> int:
        """Plaintext bytes of all its chunks."""
        return sum(chunk.length for chunk in self.chunks)


class Part(msgspec.Struct, frozen=True, gc=False):
    """Where a chunk of a group comes from: a range of the batch and the chunk's place in it; None for a fill."""

    wanted: Wanted
    location: Location | None
    range: int = -1
    at: int = 0


# A group and where each of its chunks is read from.
Placed: TypeAlias = tuple[Group, Sequence[Location | None]]


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One group, part by part."""

    group: Group
    parts: tuple[Part, ...]


class Batch(msgspec.Struct, frozen=True):
    """What one thread fetches and delivers at once.

    Args:
        extent: number of the shared extent that is its one range (`loader/sharing.py`); None if this reader fetches it.
    """

    ranges: tuple[Range, ...]
    deliveries: tuple[Delivery, ...]
    extent: int | None = None


class ReadPlan(msgspec.Struct, frozen=True):
    """All batches, in the order of the packs."""

    batches: tuple[Batch, ...]

    @property
    def requests(self) -> int:
        """Number of ranged reads, extents apart."""
        return sum(len(batch.ranges) for batch in self.batches if batch.extent is None)

    @property
    def bytes_fetched(self) -> int:
        """Stored bytes that will be read, extents apart."""
        return sum(r.length for batch in self.batches if batch.extent is None for r in batch.ranges)

    @property
    def bytes_needed(self) -> int:
        """Stored bytes of the chunks themselves."""
        return sum(p.location.length for b in self.batches for d in b.deliveries for p in d.parts if p.location)

    def spread(self) -> "ReadPlan":
        """The same reads with each range in a batch of its own, so that threads fetch them side by side.

        For groups of one chunk.
        """
        batches = []
        for batch in self.batches:
            of: dict[int, list[Delivery]] = {}
            for one in batch.deliveries:
                (part,) = one.parts
                own = Delivery(one.group, (Part(part.wanted, part.location, 0 if part.location else -1, part.at),))
                of.setdefault(part.range, []).append(own)
            batches += [Batch(batch.ranges[at : at + 1] if at >= 0 else (), tuple(some)) for at, some in of.items()]
        return ReadPlan(tuple(batches))

    def __str__(self) -> str:
        over = self.bytes_fetched / self.bytes_needed if self.bytes_needed else 1.0
        return f"{self.requests} reads, {self.bytes_fetched} bytes, amplification {over:.3f}"


def plan_reads(
    groups: Iterable[Group], index: Index, keys: ContentKeys, batch_bytes: int = READ_BYTES_TARGET
) -> ReadPlan:
    """Plan the reads for groups of chunks.

    Args:
        batch_bytes: stored bytes of a batch, and so of a range, at most, unless one group is longer.

    Raises:
        MissingData: a chunk is in no pack that is in force; names the first of them.
    """
    groups = list(groups)
    found = iter(_locations([chunk for group in groups for chunk in group.chunks], index, keys))
    placed = [(group, list(islice(found, len(group.chunks)))) for group in groups]
    return ReadPlan(tuple(batches_of(placed, batch_bytes)))


def batches_of(placed: Iterable[Placed], batch_bytes: int = READ_BYTES_TARGET) -> list[Batch]:
    """Batches of groups whose chunks' places are known, in the order of the packs."""
    batches: list[Batch] = []
    open_groups: list[Placed] = []
    size = 0
    for group, locations in sorted(placed, key=lambda pair: _order(pair[1])):
        length = sum(location.length for location in locations if location)
        if open_groups and size + length > batch_bytes:
            batches.append(_batch(open_groups))
            open_groups, size = [], 0
        open_groups.append((group, locations))
        size += length
    if open_groups:
        batches.append(_batch(open_groups))
    return batches


def _locations(wanted: Sequence[Wanted], index: Index, keys: ContentKeys) -> list[Location | None]:
    """Where each chunk is read from; None for a fill."""
    stored = [one.digest for one in wanted if fill_of(one.digest) is None]
    identifiers = keys.content_ids(stored)
    best: dict[Digest, Location] = {}
    for digest, identifier, places in zip(
        stored, identifiers, index.locations_of(identifiers, marked=True), strict=True
    ):
        if not places:
            raise MissingData(
                f"chunk {short(identifier)} is in no pack that is in force",
                hint="run 'cairn verify --full' to see what is affected",
            )
        best[digest] = places[0]
    return [best.get(one.digest) for one in wanted]


def _order(locations: Sequence[Location | None]) -> tuple[int, int]:
    return next(((at.pack, at.offset) for at in locations if at), (-1, -1))


def _batch(groups: Sequence[Placed]) -> Batch:
    places = sorted({(at.pack, at.offset, at.length) for _, found in groups for at in found if at})
    ranges = join_ranges(places)
    of: dict[tuple[int, int], tuple[int, int]] = {}
    number = 0
    for pack, offset, _ in places:
        while not (ranges[number].pack == pack and offset < ranges[number].offset + ranges[number].length):
            number += 1
        of[pack, offset] = number, offset - ranges[number].offset
    deliveries = []
    for group, found in groups:
        parts = [
            Part(wanted, at, *of[at.pack, at.offset]) if at else Part(wanted, None)
            for wanted, at in zip(group.chunks, found, strict=True)
        ]
        deliveries.append(Delivery(group, tuple(parts)))
    return Batch(tuple(ranges), tuple(deliveries))
