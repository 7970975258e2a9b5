"""Both readers find the same training states in the golden store, and those that were put into it."""

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cairn.core.ids import CheckpointId, ModelId
from cairn.loader.boxes import NUMPY_OF_WIDTH, BoxPlan, StoredTensor, Target
from cairn.loader.execute import execute
from cairn.loader.plan import plan_reads
from cairn.manifests.tiling import Box
from cairn.manifests.values import decode_value
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.envelope import read_envelope
from cairn.registry.opened import KeySource, open_store
from cairn.registry.registry import Registry
from cairn.store.backends.posix import PosixBackend
from tests.manifests.test_values import LIES
from tests.project.test_format_vectors import FACTS, GOLDEN, KEY, state_of
from tests.support.stores import home_in
from tests.vectors.format import make_training
from tests.vectors.format.make_training import place, shown
from tests.vectors.format.reader import Damaged
from tests.vectors.format.reader import encode as spell
from tests.vectors.format.reader_tree import Checkpoint, Store, from_regions
from tests.vectors.format.reader_values import assemble_state, read_value

RUNS: dict[str, Any] = FACTS["runs"]
LATER = list(RUNS)[-1]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """The golden store, read by Cairn."""
    home = home_in(tmp_path_factory.mktemp("home"))
    opened = Registry(open_store(PosixBackend(GOLDEN), home, KeySource(key_file=KEY)))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def store() -> Store:
    """The golden store, read by the second reader."""
    return Store(GOLDEN, KEY.read_bytes())


def model_of(store: Store) -> bytes:
    """Id of the run's model."""
    return store.models()[make_training.MODEL]


def opened_by_second(store: Store, checkpoint: str) -> Checkpoint:
    """A checkpoint of the run."""
    return store.checkpoint(model_of(store), bytes.fromhex(checkpoint))


def opened_by_cairn(registry: Registry, store: Store, checkpoint: str) -> CheckpointManifest:
    """The same one."""
    return CheckpointManifest(registry, ModelId(model_of(store)), CheckpointId(bytes.fromhex(checkpoint)))


def tensor_bytes(manifest: CheckpointManifest, registry: Registry) -> dict[str, list[Any]]:
    """Form and SHA-256 of every tensor, as a load reads them."""
    plan, memory, forms = BoxPlan(), {}, {}
    for entry in manifest.tensors():
        tiles = manifest.tiles(entry)
        stored = StoredTensor.of(entry, tiles, () if tiles else manifest.regions(entry))
        width = {"bool": 1, "int8": 1, "uint8": 1, "float8_e4m3fn": 1, "bfloat16": 2, "int16": 2, "float32": 4}
        array = np.full(entry.shape, 7, NUMPY_OF_WIDTH[width.get(entry.dtype, 8)])
        plan.add(stored, [Target(Box((0,) * array.ndim, array.shape), array)])
        name = place(entry.key.scope, entry.key.path)
        memory[name], forms[name] = array, [entry.dtype, list(entry.shape)]
    plan.copy_inline()
    reads = plan_reads(plan.groups(), registry.index(), registry.opened.keys.chunk)
    execute(reads, registry.chunks(), plan.deliver, 1, plan.place)
    return {name: [*forms[name], hashlib.sha256(array.tobytes()).hexdigest()] for name, array in memory.items()}


# --- What is there ------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", RUNS)
def test_both_readers_find_the_state_that_was_saved(registry: Registry, store: Store, checkpoint: str) -> None:
    facts = RUNS[checkpoint]
    expected = {name: facts[name] for name in ("tensors", "values")}
    assert expected == make_training.describe_run(facts["step"])
    assert state_of(opened_by_second(store, checkpoint)) == expected
    manifest = opened_by_cairn(registry, store, checkpoint)
    assert tensor_bytes(manifest, registry) == expected["tensors"]
    values = {
        place(entry.key.scope, entry.key.path): shown(decode_value(manifest.value_bytes(entry), str(entry.key)))
        for entry in manifest.values()
    }
    assert values == expected["values"]


@pytest.mark.parametrize("checkpoint", RUNS)
def test_both_readers_find_the_same_facts(registry: Registry, store: Store, checkpoint: str) -> None:
    opened, manifest = opened_by_second(store, checkpoint), opened_by_cairn(registry, store, checkpoint)
    assert (manifest.body.step, manifest.body.exactness) == (RUNS[checkpoint]["step"], RUNS[checkpoint]["exactness"])
    assert (opened.body["step"], opened.body.get("exactness", "")) == (manifest.body.step, manifest.body.exactness)
    assert {int(one): manifest.root(one).entries for one in manifest.components} == opened.components
    opened.state()
    assert sorted(opened.used) == opened.reachable
    commit = store.log.models[model_of(store)]["checkpoints"][bytes.fromhex(checkpoint)]
    assert (len(commit["sessions"]), commit["run_epoch"]) == (2, list(RUNS).index(checkpoint) + 1)
    ours, theirs = read_envelope(registry, manifest.model, manifest.state), store.envelope(model_of(store), manifest.id)
    assert (ours is None) == (theirs is None) == (checkpoint != LATER)
    if ours is not None and theirs is not None:
        assert (ours.committing_at, list(ours.notes)) == (theirs["committing_at"], theirs["notes"])
        assert [(one.rank, one.host, one.stages.total) for one in ours.ranks] == [
            (one["rank"], one["host"], one["stages"]["total"]) for one in theirs["ranks"]
        ]


def test_a_state_can_be_put_together_by_the_document_alone(store: Store) -> None:
    state = assemble_state(*opened_by_second(store, LATER).state())
    assert set(state) == {"model", "ema", "optimizer", "rng", "scheduler", "step", "spelt", "provenance"}
    assert (state["step"], state["scheduler"]["last_epoch"]) == (200, 200)
    tensors = {str(tensor.key): tensor.array for tensor in make_training.tensors(200)}
    assert state["model"]["embed.weight"] == state["model"]["head.weight"] == tensors["model:embed.weight"].tobytes()
    assert list(state["ema"]) == ["decay", 7, "note", "a.b/c"]
    assert state["ema"]["decay"] == [np.float64(0.999).tobytes(), (np.array([200, 0.5]).tobytes(),)]
    assert state["optimizer"]["members"][0] == {"embed.weight", "layers.0.norm"}
    assert state["optimizer"]["state"]["embed.weight"]["step"] == np.float32(200).tobytes()
    assert list(state["rng"]) == ["dp=0,tp=0", "dp=1,tp=0"]
    assert state["rng"]["dp=1,tp=0"] == {"python": (3, (200,), 0.25), "cuda": bytes(range(200))}


def test_the_run_uses_what_the_document_describes(store: Store) -> None:
    opened = opened_by_second(store, LATER)
    assert {field for tensor in opened.tensors.values() for field in tensor} == {
        "key", "dtype", "shape", "inline", "tiles", "tile_pages", "tied_to", "regions", "region_pages",
        "tiles_per_page", "region_bounds",
    }  # fmt: skip
    assert {field for value in opened.values.values() for field in value} == {"key", "inline", "length", "digests"}
    assert set(opened.components) == {1, 2, 3, 5}
    blocks = [value["digests"] for value in opened.values.values() if "digests" in value]
    assert any(len(joined) > 64 and bytes(31) in joined for joined in blocks), "several blocks, one of them a fill"
    spelled = b"".join(value.get("inline", b"") for value in opened.values.values())
    tags = ["l", "t", "d", "od", "ctr", "set", "fset", "int", "c", "ba", "io", "np", "nd", "sym", "box"]
    assert [tag for tag in tags if spell(tag) not in spelled] == []
    kinds = {value.kind for value in opened.state()[1].values() if hasattr(value, "keys") and hasattr(value, "kind")}
    assert kinds == {"dict", "list", "tuple", "tensor:Int8", "ranks", "names"}


def test_a_commit_of_a_run_that_was_replaced_is_void(registry: Registry, store: Store) -> None:
    assert [void.n for void in registry.state.voids] == sorted(store.log.void)
    model = registry.state.models[model_of(store)]
    assert [checkpoint.hex() for checkpoint in model.checkpoints] == list(RUNS)
    assert list(model.runs.values()) == list(store.log.models[model_of(store)]["runs"].values()) == [2]
    assert "taken over" in registry.state.voids[-1].reason


# --- What the second reader refuses ---------------------------------------------------------------


@pytest.mark.parametrize("plain", LIES, ids=range(len(LIES)))
def test_the_second_reader_refuses_what_cairn_refuses(plain: Any) -> None:
    with pytest.raises(Damaged):
        read_value(spell(plain))


@pytest.mark.parametrize(
    ("shape", "boxes"),
    [
        ([4], [([0], [3])]),
        ([4], [([0], [3]), ([2], [2])]),
        ([4], [([0], [5])]),
        ([4], [([0, 0], [4, 1])]),
        ([4], [([-1], [4])]),
        ([], [([], []), ([], [])]),
        ([1 << 24], [([0], [1 << 24])]),
    ],
)
def test_the_second_reader_refuses_regions_that_are_not_the_tensor(shape: list[int], boxes: list[Any]) -> None:
    with pytest.raises(Damaged):
        from_regions(shape, 1, [(*box, b"") for box in boxes], lambda digest, length: bytes(length))
