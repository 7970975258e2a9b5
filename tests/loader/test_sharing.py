"""Who fetches what on a host: each shared byte once, by one who wants it, and all about equally much."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.core.errors import IntegrityError
from cairn.loader.plan import Group, ReadPlan, Wanted, batches_of
from cairn.loader.sharing import READERS_MAX, Extent, encode_wants, shared_extents, with_extents
from cairn.store.index import Location
from tests.loader.test_plan import digest

EXTENT = 4000


def plan_of(places: list[Location]) -> ReadPlan:
    """A plan for one chunk at each place, in this order."""
    chunks = [(Group(n, (Wanted(digest(n), at.length),)), [at]) for n, at in enumerate(places)]
    return ReadPlan(tuple(batch for chunk in chunks for batch in batches_of([chunk])))


def delivered(plan: ReadPlan, extents: list[Extent]) -> dict[int, Location | None]:
    """What a plan delivers, by key, after a look at where each part is taken from."""
    found = {}
    for batch in plan.batches:
        if batch.extent is not None:
            (only,) = batch.ranges
            extent = extents[batch.extent]
            assert (only.pack, only.offset, only.length) == (extent.pack, extent.offset, extent.length)
        for delivery in batch.deliveries:
            (part,) = delivery.parts
            if part.location is not None:
                fetched = batch.ranges[part.range]
                assert (fetched.pack, fetched.offset + part.at) == (part.location.pack, part.location.offset)
                assert part.at + part.location.length <= fetched.length
            assert delivery.group.key not in found
            found[delivery.group.key] = part.location
    return found


@st.composite
def hosts(draw: st.DrawFn) -> list[list[Location]]:
    """What the readers of a host want of a few packs, each in an order of its own."""
    places, at = [], 8
    for length, gap, pack in draw(
        st.lists(st.tuples(st.integers(1, 3000), st.sampled_from([0, 0, 0, 7]), st.integers(0, 1)), max_size=30)
    ):
        places.append(Location(pack, at + gap, length))
        at += gap + length
    order: random.Random = draw(st.randoms(use_true_random=False))
    return [order.sample(places, order.randint(0, len(places))) for _ in range(draw(st.integers(1, 5)))]


@given(hosts())
def test_each_shared_place_is_fetched_once_by_one_who_wants_it(host: list[list[Location]]) -> None:
    plans = [plan_of(places) for places in host]
    wants = [encode_wants([plan]) for plan in plans]
    extents = shared_extents(wants, EXTENT)
    assert extents == shared_extents(wants, EXTENT)
    counts = {at: sum(at in places for places in host) for at in {at for places in host for at in places}}
    covered = {(e.pack, at) for e in extents for at in range(e.offset, e.end)}
    assert len(covered) == sum(extent.length for extent in extents), "extents overlap"
    assert covered == {
        (at.pack, byte) for at, n in counts.items() if n > 1 for byte in range(at.offset, at.offset + at.length)
    }
    for extent in extents:
        inside = [
            {at for at in places if at.pack == extent.pack and extent.offset <= at.offset < extent.end}
            for places in host
        ]
        assert extent.readers == sum(1 << reader for reader, places in enumerate(inside) if places)
        assert extent.readers >> extent.owner & 1
        assert extent.length < EXTENT + 3000
    for reader, (plan, places) in enumerate(zip(plans, host, strict=True)):
        (shared,) = with_extents([plan], extents, reader)
        assert delivered(shared, extents) == dict(enumerate(places))
        own = [p.location for b in shared.batches if b.extent is None for d in b.deliveries for p in d.parts]
        assert all(counts[at] == 1 for at in own if at)
        order = [batch.extent for batch in shared.batches if batch.extent is not None]
        assert order == sorted(set(order))


def test_replicas_fetch_equally_much_in_the_order_in_which_they_need_it() -> None:
    places = [Location(pack, 8 + 1000 * n, 1000) for n in range(40) for pack in (2, 0)]
    extents = shared_extents([encode_wants([plan_of(places)])] * 4, EXTENT)
    loads = [sum(extent.length for extent in extents if extent.owner == reader) for reader in range(4)]
    assert sum(loads) == 80_000 and max(loads) - min(loads) <= EXTENT
    assert [extent.pack for extent in extents][:4] == [2, 0, 2, 0]
    assert {extent.readers for extent in extents} == {0b1111}


def test_what_a_reader_alone_wants_counts_as_its_share() -> None:
    common, own = Location(0, 8, 1000), [Location(1, 8 + 5000 * n, 5000) for n in range(3)]
    extents = shared_extents([encode_wants([plan_of([common, *own])]), encode_wants([plan_of([common])])], EXTENT)
    assert [extent.owner for extent in extents] == [1]


def test_nothing_in_common_is_nothing_to_share() -> None:
    one, other = plan_of([Location(0, 8, 10)]), plan_of([Location(0, 18, 10)])
    assert shared_extents([encode_wants([one]), encode_wants([other]), encode_wants([])]) == []
    assert with_extents([one], [], 0) == [one]
    assert shared_extents([encode_wants([])] * 2) == []


def test_a_group_that_lies_in_two_extents_is_read_alone() -> None:
    first, second = Location(0, 8, 10), Location(1, 8, 10)
    extents = shared_extents([encode_wants([plan_of([first, second])])] * 2)
    both = ReadPlan(tuple(batches_of([(Group(5, (Wanted(digest(1), 10), Wanted(digest(2), 10))), [first, second])])))
    (shared,) = with_extents([both], extents, 0)
    assert [batch.extent for batch in shared.batches] == [None]


def test_places_that_overlap_are_never_taken_from_what_others_keep() -> None:
    short, long, other = Location(0, 8, 10), Location(0, 8, 20), Location(0, 18, 5)
    wants = [[short], [short], [long, other], [long, other]]
    plans = [plan_of(places) for places in wants]
    extents = shared_extents([encode_wants([plan]) for plan in plans])
    for reader, plan in enumerate(plans):
        for batch in with_extents([plan], extents, reader)[0].batches:
            assert batch.extent is None or extents[batch.extent].readers >> reader & 1


def test_what_is_no_list_of_wants_is_refused() -> None:
    none = encode_wants([])
    for wrong in (bytes(23), b"", none + bytes(24), b"\1" + bytes(30)):
        with pytest.raises(IntegrityError, match=f"{len(wrong)} bytes"):
            shared_extents([none, wrong])
    with pytest.raises(ValueError, match="limit of 32"):
        shared_extents([none] * (READERS_MAX + 1))
