"""Read plans: every chunk is covered, ranges are few, nothing much is read in vain."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.core.errors import MissingData
from cairn.core.ids import ContentId, Digest, SessionId, TenantId
from cairn.core.limits import READ_AMPLIFICATION_MAX, READ_BYTES_TARGET, READ_GAP_BYTES
from cairn.loader.plan import Group, ReadPlan, Wanted, plan_reads
from cairn.store.crypto.tenant import TenantKeys
from cairn.store.index import Location, PackRef
from tests.support.chunks import DictIndex

KEYS = TenantKeys.from_secret(TenantId(bytes(16)), bytes(32)).chunk
FILL = Digest(bytes(31) + b"\7")


def digest(number: int) -> Digest:
    return Digest(number.to_bytes(32, "big")[::-1])


def wanted(*numbers: int) -> tuple[Wanted, ...]:
    return tuple(Wanted(digest(number), 100) for number in numbers)


def index_of(places: dict[int, Location]) -> DictIndex:
    packs = [PackRef(SessionId(bytes(16)), number.to_bytes(12, "big"), 1 << 32) for number in range(4)]
    return DictIndex(packs, {KEYS.content_id(digest(number)): [at] for number, at in places.items()})


def row(lengths: list[int], gaps: list[int], pack: int = 0) -> dict[int, Location]:
    """Chunks 1, 2, 3 ... of one pack in a row, each after its gap."""
    places, at = {}, 8
    for number, (length, gap) in enumerate(zip(lengths, gaps, strict=True), 1):
        at += gap
        places[number] = Location(pack, at, length)
        at += length
    return places


def check(plan: ReadPlan, groups: list[Group], places: dict[int, Location]) -> None:
    """All groups are delivered once, each part lies where its range says, and no range is read in vain."""
    delivered = [delivery.group for batch in plan.batches for delivery in batch.deliveries]
    assert sorted(group.key for group in delivered) == sorted(group.key for group in groups)
    by_digest = {digest(number): at for number, at in places.items()}
    for batch in plan.batches:
        used = set()
        for delivery in batch.deliveries:
            assert [part.wanted for part in delivery.parts] == list(delivery.group.chunks)
            for part in delivery.parts:
                at = by_digest[part.wanted.digest]
                fetched = batch.ranges[part.range]
                assert part.location == at
                assert (fetched.pack, fetched.offset + part.at) == (at.pack, at.offset)
                assert part.at + at.length <= fetched.length
                used.add(part.range)
        assert used == set(range(len(batch.ranges)))
        needed = {part.location for delivery in batch.deliveries for part in delivery.parts}
        bytes_needed = sum(at.length for at in needed if at)
        assert sum(one.length for one in batch.ranges) <= READ_AMPLIFICATION_MAX * bytes_needed


@given(
    st.lists(
        st.tuples(st.integers(68, 1 << 20), st.sampled_from([0, 0, 0, 1, 999, 60_000, 70_000, 1 << 20])), max_size=30
    ),
    st.randoms(use_true_random=False),
)
def test_every_group_is_covered_with_little_read_in_vain(chunks: list[tuple[int, int]], draw: random.Random) -> None:
    places = row([length for length, _ in chunks], [gap for _, gap in chunks])
    places = {number: Location(draw.randrange(2), at.offset, at.length) for number, at in places.items()}
    numbers = draw.sample(sorted(places), draw.randint(0, len(places)))
    groups, key = [], 0
    while numbers:
        cut = draw.randint(1, 4)
        groups.append(Group(key, wanted(*numbers[:cut])))
        numbers, key = numbers[cut:], key + 1
    check(plan_reads(groups, index_of(places), KEYS), groups, places)


def test_neighbours_are_one_read() -> None:
    places = row([1000] * 20, [0] * 20)
    groups = [Group(number, wanted(number)) for number in range(1, 21)]
    random.Random(1).shuffle(groups)
    plan = plan_reads(groups, index_of(places), KEYS)
    assert (plan.requests, plan.bytes_fetched, plan.bytes_needed) == (1, 20_000, 20_000)
    assert str(plan) == "1 reads, 20000 bytes, amplification 1.000"


@pytest.mark.parametrize(
    ("length", "gap", "requests"),
    [
        (1 << 20, 1000, 1),
        (1 << 20, READ_GAP_BYTES, 1),
        (1 << 20, READ_GAP_BYTES + 1, 2),
        (1000, 100, 1),
        (1000, 201, 2),
    ],
)
def test_a_gap_is_read_over_if_it_is_small_and_cheap(length: int, gap: int, requests: int) -> None:
    places = row([length, length], [0, gap])
    plan = plan_reads([Group(0, wanted(1)), Group(1, wanted(2))], index_of(places), KEYS)
    assert plan.requests == requests


def test_packs_are_never_joined() -> None:
    places = {1: Location(0, 8, 100), 2: Location(1, 108, 100)}
    plan = plan_reads([Group(0, wanted(1, 2))], index_of(places), KEYS)
    assert plan.requests == 2


def test_a_chunk_that_is_wanted_twice_is_read_once_a_batch() -> None:
    places = row([5000], [0])
    groups = [Group(0, wanted(1)), Group(1, wanted(1, 1))]
    plan = plan_reads(groups, index_of(places), KEYS)
    assert (plan.requests, plan.bytes_fetched) == (1, 5000)
    check(plan, groups, places)


def test_batches_are_of_bounded_size_and_in_pack_order() -> None:
    places = row([3 << 20] * 9, [0] * 9)
    groups = [Group(number, wanted(number)) for number in (4, 9, 1, 7, 2, 8, 3, 6, 5)]
    plan = plan_reads(groups, index_of(places), KEYS)
    assert [sum(one.length for one in batch.ranges) for batch in plan.batches] == [6 << 20] * 4 + [3 << 20]
    assert max(one.length for batch in plan.batches for one in batch.ranges) <= READ_BYTES_TARGET
    assert [d.group.key for batch in plan.batches for d in batch.deliveries] == list(range(1, 10))


def test_fills_need_no_read_and_nothing_needs_no_batch() -> None:
    group = Group(7, (Wanted(FILL, 50), *wanted(1), Wanted(FILL, 60)))
    assert group.length == 210
    places = row([100], [0])
    plan = plan_reads([group, Group(8, (Wanted(FILL, 9),))], index_of(places), KEYS)
    assert plan.requests == 1
    parts = [part.location for batch in plan.batches for d in batch.deliveries if d.group.key == 7 for part in d.parts]
    assert parts == [None, places[1], None]
    assert plan_reads([], index_of({}), KEYS) == ReadPlan(())
    assert str(plan_reads([Group(8, (Wanted(FILL, 9),))], index_of({}), KEYS)).startswith("0 reads")


def test_what_is_in_no_pack_ends_the_plan_by_name() -> None:
    with pytest.raises(MissingData, match=KEYS.content_id(digest(2)).hex()[:12]):
        plan_reads([Group(0, wanted(1, 2))], index_of(row([100], [0])), KEYS)


def test_a_place_that_failed_before_is_planned_last() -> None:
    index = index_of({1: Location(0, 8, 100)})
    identifier = ContentId(KEYS.content_id(digest(1)))
    index.places[identifier].append(Location(1, 8, 100))
    index.mark(identifier, Location(1, 8, 100), bad=True)
    plan = plan_reads([Group(0, wanted(1))], index, KEYS)
    assert plan.batches[0].ranges[0].pack == 0
    index.mark(identifier, Location(0, 8, 100), bad=True)
    assert plan_reads([Group(0, wanted(1))], index, KEYS).requests == 1
