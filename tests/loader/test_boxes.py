"""Resharding against numpy's own slicing: any stored boxes, any wanted boxes, any memory."""

from collections.abc import Mapping
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from cairn.core.errors import BadInput, IntegrityError
from cairn.core.ids import Digest
from cairn.core.limits import CHUNK_BYTES_MAX
from cairn.loader.boxes import NUMPY_OF_WIDTH, Array, BoxPlan, StoredTensor, Target
from cairn.manifests.schema import Key, Region, TensorEntry
from cairn.manifests.tiling import Box, grid
from cairn.store.fills import fill_digest, fill_of
from tests.support.boxes import boxes_in, partitions, shapes, slices, tiny_tiles, whole

DTYPES = {"bool": 1, "bfloat16": 2, "float32": 4, "int64": 8, "complex128": 16}
Chunks = dict[Digest, bytes]


def keep(chunks: Chunks, array: Array) -> Digest:
    """Digest of an array's row-major bytes; those of a fill are kept nowhere."""
    data = array.tobytes()
    digest = fill_digest(data)
    if digest is None:
        digest = Digest(blake3(data).digest())
        chunks[digest] = data
    return digest


def values(dtype: str, shape: tuple[int, ...], seed: int, fill: int | None = None) -> Array:
    """A tensor's elements as integers of their width; random bytes, or one byte again and again."""
    size = prod(shape) * DTYPES[dtype]
    data = np.random.default_rng(seed).bytes(size) if fill is None else bytes((fill,)) * size
    return np.frombuffer(data, NUMPY_OF_WIDTH[DTYPES[dtype]]).reshape(shape)


def in_tiles(chunks: Chunks, dtype: str, array: Array, name: str = "t") -> StoredTensor:
    """A tensor stored by its grid."""
    layout = grid(dtype, array.shape)
    tiles = [keep(chunks, array[slices(layout.tile(number))]) for number in range(layout.tile_count)]
    return StoredTensor(name, dtype, array.shape, None, tiles)


def in_regions(chunks: Chunks, dtype: str, array: Array, boxes: list[Box]) -> StoredTensor:
    """A tensor stored as given boxes."""
    regions = [Region(box.offsets, box.lengths, keep(chunks, array[slices(box)])) for box in boxes]
    return StoredTensor("t", dtype, array.shape, None, (), regions)


def carry_out(plan: BoxPlan, chunks: Mapping[Digest, bytes], in_place: bool) -> None:
    """What `execute` does, from memory: each chunk once, in the memory that it belongs to where there is such."""
    plan.copy_inline()
    for group in plan.groups():
        (wanted,) = group.chunks
        fill = fill_of(wanted.digest)
        data = chunks[wanted.digest] if fill is None else bytes((fill,)) * wanted.length
        assert len(data) == wanted.length
        memory = plan.place(group.key) if in_place else None
        if memory is not None:
            assert len(memory) == wanted.length
            memory[:] = data
        plan.deliver(group.key, [memory if memory is not None else memoryview(data)])


@st.composite
def memory_for(draw: st.DrawFn, lengths: tuple[int, ...], width: int) -> Array:
    """Memory of a shape: contiguous, reversed, with gaps, or with its axes in another order."""
    order = draw(st.permutations(range(len(lengths))))
    steps = [draw(st.sampled_from([1, 1, 2, 3, -1, -2])) for _ in order]
    behind = tuple(lengths[axis] * abs(step) for axis, step in zip(order, steps, strict=True))
    base = np.full(behind, 0xA5, NUMPY_OF_WIDTH[width])
    view = base[(*(slice(None, None, step) for step in steps), ...)]
    array = view.transpose(sorted(range(len(lengths)), key=lambda axis: order[axis]))
    assert array.shape == lengths
    return array


def mosaic(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Box]:
    """Boxes that are wanted: several that may overlap, or a tensor's parts."""
    if draw(st.booleans()):
        return draw(partitions(whole(shape)))
    return draw(st.lists(boxes_in(shape), max_size=4))


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, Array, str, list[Box], list[Target]]:
    """A tensor, how it is stored, and what is wanted of it."""
    dtype, shape = draw(st.sampled_from(sorted(DTYPES))), draw(shapes())
    array = values(dtype, shape, draw(st.integers(0, 99)), draw(st.none() | st.sampled_from([0, 1, 255])))
    wanted = [Target(box, draw(memory_for(box.lengths, DTYPES[dtype]))) for box in mosaic(draw, shape)]
    how = draw(st.sampled_from(["tiles", "regions", "inline"]))
    return dtype, array, how, draw(partitions(whole(shape))), wanted


@given(cases(), st.booleans())
@settings(max_examples=300)
def test_targets_hold_what_numpy_would_slice(
    case: tuple[str, Array, str, list[Box], list[Target]], in_place: bool
) -> None:
    dtype, array, how, parts, targets = case
    chunks: Chunks = {}
    with tiny_tiles():
        if how == "inline":
            stored = StoredTensor("t", dtype, array.shape, array.tobytes())
        elif how == "tiles":
            stored = in_tiles(chunks, dtype, array)
        else:
            stored = in_regions(chunks, dtype, array, parts)
        plan = BoxPlan()
        plan.add(stored, targets)
        carry_out(plan, chunks, in_place)
    for target in targets:
        assert target.array.tobytes() == array[slices(target.box)].tobytes()
    assert plan.bytes_wanted == sum(target.box.volume for target in targets) * DTYPES[dtype]


@given(st.data(), shapes(1))
def test_nothing_outside_a_target_is_touched(data: st.DataObject, shape: tuple[int, ...]) -> None:
    array, chunks = values("float32", shape, 1), {}
    held, box = np.full(shape, 7, np.uint32), data.draw(boxes_in(shape))
    with tiny_tiles():
        plan = BoxPlan()
        plan.add(in_tiles(chunks, "float32", array), [Target(box, held[(*slices(box), ...)])])
        carry_out(plan, chunks, True)
    expected = np.full(shape, 7, np.uint32)
    expected[slices(box)] = array[slices(box)]
    assert np.array_equal(held, expected)


@given(st.data(), shapes(1))
def test_only_chunks_that_meet_a_target_are_read(data: st.DataObject, shape: tuple[int, ...]) -> None:
    array, chunks = values("float32", shape, 2), {}
    parts, box = data.draw(partitions(whole(shape))), data.draw(boxes_in(shape))
    plan = BoxPlan()
    plan.add(in_regions(chunks, "float32", array, parts), [Target(box, np.empty(box.lengths, np.uint32))])
    touched = [part.volume * 4 for part in parts if box.volume and part.intersect(box)]
    assert sorted(wanted.length for group in plan.groups() for wanted in group.chunks) == sorted(touched)
    assert plan.bytes_of_chunks == sum(touched)


def test_full_tiles_go_straight_into_contiguous_memory() -> None:
    array, chunks = values("float32", (2048, 1024), 3), {}
    stored, held = in_tiles(chunks, "float32", array), np.empty((2048, 1024), np.uint32)
    plan = BoxPlan()
    plan.add(stored, [Target(whole(array.shape), held)])
    assert len(plan.groups()) == len(stored.tiles) > 1
    assert all(plan.place(group.key) is not None for group in plan.groups())
    carry_out(plan, chunks, True)
    assert np.array_equal(held, array)


def test_a_chunk_that_several_targets_want_is_read_once() -> None:
    array, chunks = values("float32", (40, 10), 4), {}
    targets = [Target(box, np.empty(box.lengths, np.uint32)) for box in (Box((0, 0), (20, 10)), Box((10, 0), (30, 5)))]
    plan = BoxPlan()
    plan.add(in_tiles(chunks, "float32", array), targets)
    plan.add(in_tiles(chunks, "float32", array, "another of the same bytes"), targets[:1])
    assert [plan.name_of(group.key) for group in plan.groups()] == ["t"]
    carry_out(plan, chunks, True)
    for target in targets:
        assert np.array_equal(target.array, array[slices(target.box)])


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("fill", [0, 1, 255])
def test_fills_of_elements_of_different_widths_do_not_mix(fill: int, in_place: bool) -> None:
    """Their digest is one and the same, and so is the box where the shapes are."""
    for first, second in [*pairwise(DTYPES), *pairwise(reversed(DTYPES))]:
        chunks: Chunks = {}
        arrays = [values(dtype, (200,), 0, fill) for dtype in (first, second)]
        # Not contiguous, then contiguous: only the second takes content in place.
        held = [np.full((400,), 7, arrays[0].dtype)[::2], np.full((200,), 7, arrays[1].dtype)]
        plan = BoxPlan()
        for dtype, array, memory in zip((first, second), arrays, held, strict=True):
            plan.add(in_tiles(chunks, dtype, array), [Target(whole((200,)), memory)])
        carry_out(plan, chunks, in_place)
        assert [memory.tobytes() for memory in held] == [array.tobytes() for array in arrays], (first, second)


@pytest.mark.parametrize("how", ["tiles", "regions", "inline"])
def test_a_scalar_and_a_tensor_without_elements(how: str) -> None:
    for shape in ((), (0,), (3, 0, 2), (1, 1)):
        array, chunks = values("int64", shape, 5), {}
        held = np.zeros(shape, np.uint64)
        stored = {
            "tiles": lambda a=array, c=chunks: in_tiles(c, "int64", a),
            "regions": lambda a=array, c=chunks: in_regions(c, "int64", a, [whole(a.shape)] if a.size else []),
            "inline": lambda a=array: StoredTensor("t", "int64", a.shape, a.tobytes()),
        }[how]()
        plan = BoxPlan()
        plan.add(stored, [Target(whole(shape), held)])
        assert len(plan.groups()) == (0 if how == "inline" or not array.size else 1)
        carry_out(plan, chunks, True)
        assert np.array_equal(held, array)


# --- What a manifest claims ---------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", bytes(23), bytes(25), bytes(48)])
def test_bytes_in_line_of_another_number_than_the_shape_wants_are_damage(data: bytes) -> None:
    plan = BoxPlan()
    plan.add(StoredTensor("t", "float32", (2, 3), data), [Target(whole((2, 3)), np.empty((2, 3), np.uint32))])
    with pytest.raises(IntegrityError, match="not those of its shape"):
        plan.copy_inline()


def test_a_stored_box_beyond_any_chunk_is_damage_before_memory_is_taken() -> None:
    side = CHUNK_BYTES_MAX // 4
    fill = Digest(bytes(32))
    for length in (side, side + 1, 1 << 50):
        stored = StoredTensor("t", "float32", (length,), None, (), [Region((0,), (length,), fill)])
        target = Target(Box((0,), (1,)), np.empty((1,), np.uint32))
        if length == side:
            BoxPlan().add(stored, [target])
            continue
        with pytest.raises(IntegrityError, match="larger than any chunk"):
            BoxPlan().add(stored, [target])


def test_elements_narrower_than_a_byte_are_a_flat_tensor_of_bytes() -> None:
    data, chunks = np.random.default_rng(6).bytes(3 << 20), {}
    array = np.frombuffer(data, np.uint8)
    tiles = in_tiles(chunks, "bool", array).tiles
    stored = StoredTensor.of(TensorEntry(Key("", ("w",)), "float4_e2m1fn", (3 << 10, 2 << 10)), tiles, ())
    assert (stored.shape, len(tiles)) == ((3 << 20,), grid("float4_e2m1fn", (3 << 10, 2 << 10)).tile_count)
    box, held = Box((1_000_000,), (1_500_000,)), np.empty(1_500_000, np.uint8)
    plan = BoxPlan()
    plan.add(stored, [Target(box, held)])
    carry_out(plan, chunks, True)
    assert held.tobytes() == data[1_000_000:2_500_000]


@pytest.mark.parametrize(("dtype", "shape"), [("float33", (1,)), ("float4_e2m1fn", (3,)), ("float32", (1 << 62,))])
def test_an_impossible_tensor_is_refused(dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInput):
        StoredTensor.of(TensorEntry(Key("", ()), dtype, shape, b""), (), ())
