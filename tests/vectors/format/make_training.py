"""The golden store's training run: what its checkpoints hold, and how they come about. `make.py` calls this.

Two ranks upload, each in a session of its own; the first writes the manifest. Nothing here trains: tensors and values
are chosen so that each form of the format occurs.
"""

import hashlib
import io
import json
import math
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec
import numpy as np

from cairn.core.canonical import encode
from cairn.core.clock import Entropy
from cairn.core.ids import CheckpointId, Digest, ModelId
from cairn.manifests.dtypes import BITS
from cairn.manifests.schema import ComponentRoot, Key, Parent, Region, TensorEntry
from cairn.manifests.tiling import Box, grid
from cairn.manifests.values import Container, Symbol, encode_value
from cairn.registry.entries import TYPES, Commit, Entry, Payload, open_entry, payload_of, seal_entry
from cairn.registry.envelope import Envelope, RankReport, Stages
from cairn.registry.manifestwriter import ManifestWriter
from cairn.registry.models import CommitMeta, ensure_model, ref_value
from cairn.registry.names import entry_name
from cairn.registry.publish import Draft, publish
from cairn.registry.registry import Registry
from cairn.registry.runs import open_run
from cairn.registry.session import Session
from cairn.store.chunkstore import ChunkWriter
from cairn.store.codec import CodecPolicy
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.signing import Identity
from cairn.store.crypto.tenant import ContentType
from cairn.store.index import PieceEntry
from cairn.store.written import WriteCounts, Written

MODEL, BRANCH = "golden run", "main"
IN_PIECES = (
    ("cairn.registry.manifestwriter.ENTRY_DIGEST_BYTES_MAX", 96),
    ("cairn.registry.manifestwriter.ENTRY_REGIONS_MAX", 3),
    ("cairn.manifests.pages._MIN_BYTES", 256),
    ("cairn.manifests.pages.PAGE_BYTES_TARGET", 1024),
)
WEIGHTS, OPTIMIZER = ComponentClass.WEIGHTS, ComponentClass.OPTIMIZER
TRAINING, PROVENANCE = ComponentClass.TRAINING, ComponentClass.PROVENANCE
# Numpy's names of all numbers that a value may have.
NUMBERS = ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16")
Array = np.ndarray[Any, Any]


class Tensor(NamedTuple):
    """A tensor; `regions` None: in line if it is short, else in tiles.

    Args:
        array: its elements, as integers of their width where numpy lacks the type.
        ranks: which rank stores each region.
    """

    component: ComponentClass
    key: Key
    dtype: str
    array: Array
    regions: Sequence[Box] | None = None
    ranks: Sequence[int] = ()
    tied_to: Key | None = None


class Value(NamedTuple):
    """A plain value."""

    component: ComponentClass
    key: Key
    value: Any


def pattern(*shape: int, dtype: str = "<i2") -> Array:
    """Values that differ from row to row and still compress well."""
    rows = np.arange(np.prod(shape[:-1], dtype=int)).reshape(-1, 1)
    return ((rows * 31 + np.arange(shape[-1]) // 64) % 127).astype(dtype).reshape(shape)


# --- The state ----------------------------------------------------------------------------------


def tensors(step: int) -> list[Tensor]:
    """All tensors at a step; few change from step to step."""
    embed = pattern(1024, 2048)
    embed[256:512] = 0
    embed[:4] = step
    averages = embed[:256] / np.float32(8)
    norm = pattern(5, 64, dtype="<f4")
    norm[2] = 0
    quantized = np.arange(64, dtype="<i1").reshape(8, 8) - 30
    found = [
        Tensor(WEIGHTS, Key("model", ("embed.weight",)), "bfloat16", embed),
        Tensor(WEIGHTS, Key("model", ("head.weight",)), "bfloat16", embed, tied_to=Key("model", ("embed.weight",))),
        Tensor(
            WEIGHTS, Key("model", ("layers.0.weight",)), "float32", pattern(700, 600, dtype="<f4"),
            [Box((0, 0), (300, 600)), Box((300, 0), (400, 200)), Box((300, 200), (400, 400))], (0, 1, 1),
        ),
        Tensor(
            WEIGHTS, Key("model", ("layers.0.norm",)), "float32", norm,
            [Box((row, 0), (1, 64)) for row in range(5)], (0, 0, 1, 1, 1),
        ),
        Tensor(WEIGHTS, Key("model", ("layers.0.mask",)), "bool", np.arange(35).reshape(5, 7) % 3 == 0),
        Tensor(WEIGHTS, Key("model", ("layers.0.scale",)), "float8_e4m3fn", np.arange(16, dtype="<u1")),
        Tensor(WEIGHTS, Key("model", ("layers.0.rope",)), "complex64", pattern(2, 3, dtype="<c8") * (1 + 2j)),
        Tensor(WEIGHTS, Key("model", ("layers.0.empty",)), "float32", np.zeros((0, 4), "<f4")),
        Tensor(
            WEIGHTS, Key("model", ("cube",)), "uint8", pattern(4, 4, 32, dtype="<u1"),
            [Box((0, 0, 0), (2, 4, 32)), Box((2, 0, 0), (2, 4, 10)), Box((2, 0, 10), (2, 4, 22))], (0, 0, 1),
        ),
        Tensor(WEIGHTS, Key("model", ("quantized", "_data")), "int8", quantized),
        Tensor(WEIGHTS, Key("model", ("quantized", "_scale")), "float32", np.float32([0.5] * 8)),
        Tensor(WEIGHTS, Key("ema", ("decay", 0)), "float64", np.array(0.999)),
        Tensor(WEIGHTS, Key("ema", ("decay", 1, 0)), "float64", np.array([step, 0.5])),
        Tensor(WEIGHTS, Key("ema", (7,)), "int64", np.arange(3)),
        Tensor(WEIGHTS, Key("ema", ("a.b/c",)), "int16", pattern(1, 6)),
        Tensor(OPTIMIZER, Key("optimizer", ("state", "embed.weight", "step")), "float32", np.float32(step)),
        Tensor(OPTIMIZER, Key("optimizer", ("state", "embed.weight", "exp_avg")), "float32", averages),
        Tensor(OPTIMIZER, Key("optimizer", ("state", "layers.0.norm", "exp_avg")), "float32", np.zeros((5, 64), "<f4")),
        Tensor(TRAINING, Key("rng", ("dp=1,tp=0", "cuda")), "uint8", np.arange(200, dtype="<u1")),
    ]  # fmt: skip
    found = [tensor._replace(array=np.asarray(tensor.array)) for tensor in found]
    assert all(tensor.array.itemsize * 8 == BITS[tensor.dtype] for tensor in found)
    return found


def values(step: int) -> list[Value]:
    """All values at a step."""
    ranks = [
        Value(TRAINING, Key("rng", ("dp=0,tp=0",)), {"python": (3, (1 << 31, step)), "numpy": np.uint32([7, step])}),
        Value(TRAINING, Key("rng", ("dp=1,tp=0",)), Container("dict", ("python", "cuda"))),
        Value(TRAINING, Key("rng", ("dp=1,tp=0", "python")), (3, (step,), 0.25)),
    ]  # fmt: skip
    return [
        Value(WEIGHTS, Key("model", ("quantized",)), Container("tensor:Int8", ("_data", "_scale", "(side data)"))),
        Value(WEIGHTS, Key("model", ("quantized", "(side data)")), {"block_size": 8, "of": Symbol("dtype", "float32")}),
        Value(WEIGHTS, Key("model", ("layers.0._extra_state",)), {"amax": [1.0, 2.0], "recipe": "delayed"}),
        Value(WEIGHTS, Key("ema", ()), Container("dict", ("decay", 7, "note", "a.b/c"))),
        Value(WEIGHTS, Key("ema", ("decay",)), Container("list", (0, 1))),
        Value(WEIGHTS, Key("ema", ("decay", 1)), Container("tuple", (0,))),
        Value(WEIGHTS, Key("ema", ("note",)), "beside tensors"),
        Value(OPTIMIZER, Key("optimizer", ("groups", 0)), {"lr": 1e-3 / step, "betas": (0.9, 0.999), "foreach": None}),
        Value(OPTIMIZER, Key("optimizer", ("members", 0)), Container("names", ("embed.weight", "layers.0.norm"))),
        Value(OPTIMIZER, Key("optimizer", ("unlike",)), Container("names", ("step",))),
        Value(TRAINING, Key("rng", ()), Container("ranks", ("dp=0,tp=0", "dp=1,tp=0"))),
        *ranks,
        Value(TRAINING, Key("scheduler", ()), {"last_epoch": step, "base_lrs": [1e-3]}),
        Value(TRAINING, Key("step", ()), step),
        *(Value(TRAINING, Key("spelt", (name,)), value) for name, value in spelt().items()),
        Value(PROVENANCE, Key("provenance", ()), {"config": {"width": 2048}, "git": {"dirty": False}}),
    ]


def spelt() -> dict[str, Any]:
    """Values of every spelling; the longest ones make blocks, and one of those is a fill."""
    deep: Any = "the innermost"
    for _ in range(100):
        deep = [deep]
    mixed = {1: "one", "1": "text", None: 0, 1.5: [], (2, "x"): {}, b"k": True, frozenset({3}): -1}
    return {
        "nothing": None, "true": True, "false": False,
        "whole": [0, 127, 128, 1 << 32, -1, -33, (1 << 63) - 1, -(1 << 63)],
        "beyond": [1 << 63, -(1 << 63) - 1, (1 << 64) - 1, -(10**40)],
        "floats": [0.1, -0.0, 1e308, 5e-324, math.inf, -math.inf, math.nan], "texts": ["", "plain", "é☃𝄞", "\0"],
        "bytes": [b"", bytes(range(256))], "lists": [[], [1, [2, []]]], "tuples": ((), (1, ("a", None))),
        "mixed": mixed, "no items": {}, "ordered": OrderedDict([("b", 1), ("a", OrderedDict())]),
        "counted": Counter({"x": 3, "y": 0, "z": -1}), "set": {1, "a", None, (2.5, b"")}, "empty set": set(),
        "frozen": frozenset({frozenset(), 7}), "complex": [1 + 2j, complex(-0.0, math.inf)],
        "changeable": [bytearray(b"abc"), bytearray()], "stream": io.BytesIO(b"saved by torch"),
        "numbers": [np.array([1], code)[0] for code in NUMBERS],
        "arrays": [(np.arange(6) % 2).astype(code).reshape(2, 3) for code in NUMBERS],
        "shapes": [np.array(2.5), np.zeros((0, 3), "<i4"), np.arange(24, dtype=">u2").reshape(2, 3, 4).T],
        "names": {"dtype": Symbol("dtype", "bfloat16"), "device": Symbol("device", "cuda:1")},
        "deep": deep,
        "long": list(range(20_000)), "blocks": b"\1" * (1 << 19) + bytes((1 << 21) + 5),
    }  # fmt: skip


# --- Facts --------------------------------------------------------------------------------------


def describe_run(step: int) -> dict[str, Any]:
    """What a reader must find, in a form for `golden.json`."""
    return {
        "tensors": {
            place(tensor.key.scope, tensor.key.path): [
                tensor.dtype, list(tensor.array.shape), hashlib.sha256(tensor.array.tobytes()).hexdigest(),
            ]
            for tensor in tensors(step)
        },
        "values": {place(value.key.scope, value.key.path): shown(value.value) for value in values(step)},
    }  # fmt: skip


def place(scope: str, path: Sequence[str | int]) -> str:
    """A key as text."""
    return json.dumps([scope, *path], ensure_ascii=False)


def shown(value: Any) -> str:
    """A value as text that tells types, order and signs; a hash of what is long. Knows both readers' types."""
    text = _shown(value)
    return text if len(text) <= 400 else f"{len(text)} {hashlib.sha256(text.encode()).hexdigest()}"


def _shown(value: Any) -> str:
    kind = type(value).__name__
    if isinstance(value, np.ndarray):
        return f"Array({value.dtype.newbyteorder('<').str}, {list(value.shape)}, {value.ravel().tolist()})"
    if isinstance(value, np.generic):
        return f"Number({value.dtype.str}, {value.item()!r})"
    if kind == "Array":
        return f"Array({value.dtype}, {value.shape}, {value.numbers})"
    if kind == "Number":
        return f"Number({value.dtype}, {value.number!r})"
    if kind in ("Symbol", "Container"):
        return f"{kind}({', '.join(repr(getattr(value, name)) for name in value.__annotations__)})"
    if kind == "BytesIO":
        return f"BytesIO({value.getvalue()!r})"
    if isinstance(value, Mapping):
        return f"{kind}({', '.join(f'{_shown(k)}: {_shown(v)}' for k, v in value.items())})"
    if isinstance(value, list | tuple):
        return f"{kind}({', '.join(map(_shown, value))})"
    if isinstance(value, set | frozenset):
        return f"{kind}({', '.join(sorted(map(_shown, value)))})"
    return repr(value)


# --- Saving -------------------------------------------------------------------------------------


def make_run(registry: Registry, entropy: Entropy, tick: Any) -> dict[str, Any]:
    """A run saves; another takes over its branch; the first one's next save is void; the other saves.

    Args:
        tick: called when time passes.

    Returns:
        What a reader must find of each checkpoint, by model and id.
    """
    model, facts = ensure_model(registry, MODEL), {}
    for step in (100, 200):
        epoch = open_run(registry, model, BRANCH)
        if epoch > 1:
            add_superseded(registry, entropy)
        checkpoint = save(registry, model, step, epoch)
        facts[checkpoint.hex()] = {"step": step, "exactness": _exactness(step), **describe_run(step)}
        tick()
    return facts


def _exactness(step: int) -> str:
    return "" if step == 100 else "bitwise_same_topology"


def save(registry: Registry, model: ModelId, step: int, epoch: int) -> CheckpointId:
    """Upload by two ranks, and commit."""
    opened = registry.opened
    registry.refresh()
    with ExitStack() as stack:
        for target, value in IN_PIECES:
            stack.enter_context(patch(target, value))
        sessions = [stack.enter_context(Session(registry)) for _ in range(2)]
        saves = [session.save(CodecPolicy.ZSTD) for session in sessions]
        writers = [stack.enter_context(one.writer()) for one in saves]
        entries = _entries(writers, step)
        writers[1].flush()
        pages = ManifestWriter(writers[0], opened.keys)
        roots = {component: _component(pages, component, entries, step) for component in ComponentClass}
        writers[0].flush()
        expected = ref_value(registry, model, BRANCH)
        draft = Draft(
            model, BRANCH, expected, {component: root for component, root in roots.items() if root.entries},
            pages.reachable, (Parent("continue", expected),) if expected else (), CommitMeta(f"step {step}", step),
            _together(saves[0].written, saves[1].written), (sessions[1].id,), sessions[1].settle(),
            _exactness(step), epoch, _envelope(step) if step > 100 else None,
        )  # fmt: skip
        return publish(registry, sessions[0], draft)


def _entries(writers: Sequence[ChunkWriter], step: int) -> list[tuple[ComponentClass, TensorEntry]]:
    """Store all tensors; what is tied is stored once."""
    found = []
    for tensor in tensors(step):
        entry = TensorEntry(tensor.key, tensor.dtype, tensor.array.shape, tied_to=tensor.tied_to)
        if tensor.regions is not None:
            regions = [
                Region(box.offsets, box.lengths, bytes(_put(writers[rank], tensor, box)))
                for box, rank in zip(tensor.regions, tensor.ranks, strict=True)
            ]
            entry = msgspec.structs.replace(entry, regions=tuple(regions))
        elif tensor.array.nbytes <= 128:
            entry = msgspec.structs.replace(entry, inline=tensor.array.tobytes())
        else:
            layout = grid(tensor.dtype, tensor.array.shape)
            tiles = [_put(writers[0], tensor, layout.tile(number)) for number in range(layout.tile_count)]
            entry = msgspec.structs.replace(entry, tiles=b"".join(tiles))
        found.append((tensor.component, entry))
    return found


def _put(writer: ChunkWriter, tensor: Tensor, box: Box) -> Digest:
    slices = tuple(slice(at, at + length) for at, length in zip(box.offsets, box.lengths, strict=True))
    return writer.put(ContentType.CHUNK, tensor.array[slices].tobytes(), BITS[tensor.dtype] // 8)


def _component(
    pages: ManifestWriter, component: ComponentClass, entries: Sequence[tuple[ComponentClass, TensorEntry]], step: int
) -> ComponentRoot:
    own = [entry for found, entry in entries if found is component]
    for entry in own:
        joined = (entry.tiles or b"") + b"".join(region.digest for region in entry.regions)
        pages.reach(Digest(joined[at : at + 32]) for at in range(0, len(joined), 32))
    spelled = [
        pages.value(value.key, encode_value(value.value, str(value.key)))
        for value in values(step)
        if value.component is component
    ]
    size = sum(tensor.array.nbytes for tensor in tensors(step) if tensor.component is component)
    return pages.component(own, values=spelled, bytes_logical=size)


def _together(own: Written, other: Written) -> Written:
    """What both ranks have uploaded, as one save's."""
    moved = [PieceEntry(one.id, one.pack + len(own.packs), one.offset, one.length) for one in other.entries]
    return Written([*own.packs, *other.packs], [*own.entries, *moved], own.relied | other.relied)


def _envelope(step: int) -> bytes:
    stages, counts = Stages(capture=0.5, total=1.5), WriteCounts(chunks_new=step)
    reports = [RankReport(rank, f"node-{rank}", stages, counts, ("a note",)) for rank in range(2)]
    return encode(Envelope(1_700_000_000_000_000_000, tuple(reports), ("trainable weights are identical",)))


def add_superseded(registry: Registry, entropy: Entropy) -> None:
    """A commit that is in order but for the epoch of its run, which another has replaced."""
    opened = registry.opened
    n = registry.refresh().length - 2
    stored = opened.backend.read(entry_name(n))
    before = payload_of(open_entry(stored, n, opened.tenant, opened.store, opened.secrets.k_log))
    assert isinstance(before, Commit), "the entry before the new run's is the old one's commit"
    change = msgspec.structs.replace(before.ref, expected=before.checkpoint)
    payload = msgspec.structs.replace(
        before, checkpoint=entropy.token(32), packs=b"", pieces=(), hit_position=n, ref=change
    )
    append_as(registry, opened.identity, payload, entropy)


def append_as(registry: Registry, identity: Identity, payload: Payload, entropy: Entropy) -> None:
    """Append an entry whatever the fold will say of it."""
    opened, n = registry.opened, registry.refresh().length
    entry = Entry(
        1, opened.tenant, opened.store, n, registry._replay.root, TYPES[type(payload)], identity.actor,
        entropy.token(16), opened.clock.wall_ns(), encode(payload),
    )  # fmt: skip
    opened.backend.create(entry_name(n), [seal_entry(entry, identity, opened.secrets.k_log, entropy)])
