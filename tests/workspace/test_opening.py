"""`cairn.open`: tensors by name, slices as numpy makes them, and no more of the storage than they touch."""

import threading
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file

import cairn
from cairn.core.errors import IntegrityError, NotFoundError, RefusedError, UsageError
from cairn.manifests.schema import Key
from cairn.store.backends.posix import PosixBackend
from cairn.training.rng import RngState
from cairn.workspace.ingest import READ_BYTES_MAX
from cairn.workspace.opening import OpenCheckpoint, _names
from tests.support.counting import CountingBackend
from tests.support.stores import Site, commit_tree, new_site
from tests.support.tensors import safetensors, weights
from tests.support.trees import write_files

LARGE = weights(1, 1500, 1024)
SMALL = np.arange(24, dtype=np.int64).reshape(2, 3, 4)


@pytest.fixture
def opened(site: Site, tmp_path: Path) -> OpenCheckpoint:
    """A checkpoint of two folders of files."""
    first = {"large": LARGE, "small": SMALL, "scalar": np.float64(2.5).reshape(()), "none": np.empty((0, 3), np.int8)}
    files = {"m.safetensors": safetensors(first), "adapter/a.safetensors": safetensors({"small": SMALL + 1})}
    registry = site.registry()
    commit_tree(registry, write_files(tmp_path / "tree", files), step=7)
    return cairn.open("m@main", registry)


def test_names_are_those_of_the_files(opened: OpenCheckpoint) -> None:
    assert sorted(opened) == sorted(["large", "small", "scalar", "none", "adapter/small"])
    assert len(opened) == 5 and "small" in opened and "other" not in opened
    with pytest.raises(KeyError):
        opened["other"]
    assert (opened["large"].dtype, opened["large"].shape, opened["large"].nbytes) == ("float32", (1500, 1024), 6144000)
    assert opened.metadata["step"] == 7 and len(opened.metadata["checkpoint"]) == 64


INDICES: list[Any] = [
    ..., (), 0, -1, slice(None), slice(1, 2), slice(5, 2), slice(None, None, -1), slice(-1, None), np.int64(1),
    (0, 1), (0, 1, 2), (..., 0), (0, ..., 1), (slice(None), 2), (slice(0, 1), slice(1, 3), slice(0, 4, 2)),
    (slice(None), slice(None, None, -2), slice(3, 0, -3)), (-1, -2, -3), (0, 1, 2, ...),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_slices_are_those_of_numpy(opened: OpenCheckpoint, index: Any, framework: str) -> None:
    opened.framework = framework  # type: ignore[assignment]  # a name of either
    found = opened["small"][index]
    assert isinstance(found, np.ndarray if framework == "numpy" else torch.Tensor)
    np.testing.assert_array_equal(np.asarray(found), SMALL[index])
    np.testing.assert_array_equal(
        np.asarray(opened["small"].get_slice(*(index if type(index) is tuple else (index,)))), SMALL[index]
    )


@pytest.mark.parametrize("index", [(slice(100, 1100), slice(5, 900)), (1499, slice(0, 1)), (slice(None), 1023), ...])
def test_slices_of_many_chunks(opened: OpenCheckpoint, index: Any) -> None:
    np.testing.assert_array_equal(opened["large"][index], LARGE[index])


def test_tensors_without_axes_or_elements(opened: OpenCheckpoint) -> None:
    assert (
        opened["scalar"][...].shape == () and opened["scalar"][()] == 2.5 and float(np.asarray(opened["scalar"])) == 2.5
    )
    assert opened["none"][...].shape == (0, 3) and opened["none"][:, 1].dtype == np.int8
    assert np.asarray(opened["small"], dtype=np.float32).dtype == np.float32
    assert len(opened["small"]) == 2 and list(opened["small"][0, :, 0]) == [0, 4, 8]
    with pytest.raises(TypeError, match="no length"):
        len(opened["scalar"])


@pytest.mark.parametrize(
    ("index", "error"),
    [(2, IndexError), (-3, IndexError), ((0, 0, 0, 0), IndexError), ((..., ...), IndexError), ([0, 1], TypeError),
     (None, TypeError), (True, TypeError), (1.0, TypeError), ("x", TypeError)],
)  # fmt: skip
def test_other_indices_are_refused(opened: OpenCheckpoint, index: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        opened["small"][index]


def test_dtypes_that_numpy_lacks_are_torchs(site: Site, tmp_path: Path) -> None:
    state = {
        "brain": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3), "flag": torch.tensor([True, False]),
        "eight": torch.tensor([1.5, -2]).to(torch.float8_e5m2), "wave": torch.tensor([1 + 2j]),
        "half": torch.tensor(0.5).half(),
    }  # fmt: skip
    (tmp_path / "tree").mkdir()
    save_file(state, tmp_path / "tree" / "m.safetensors")
    registry = site.registry()
    commit_tree(registry, tmp_path / "tree")
    in_torch, in_numpy = cairn.open("m", registry, framework="torch"), cairn.open("m", registry)
    for name, tensor in state.items():
        found = in_torch[name][...]
        assert found.dtype is tensor.dtype and found.shape == tensor.shape
        assert bytes(found.contiguous().reshape(-1).view(torch.uint8)) == bytes(tensor.reshape(-1).view(torch.uint8))
    assert torch.equal(in_torch["brain"][1, 1:], state["brain"][1, 1:])
    np.testing.assert_array_equal(in_numpy["flag"][::-1], [False, True])
    assert in_numpy["wave"][0] == 1 + 2j
    for name in ("brain", "eight"):
        with pytest.raises(RefusedError, match="framework='torch'"):
            in_numpy[name][...]
    with pytest.raises(UsageError):
        cairn.open("m", registry, framework="jax")  # type: ignore[arg-type]  # wrong on purpose


def test_names_that_would_read_alike_are_told_apart() -> None:
    assert _names([Key("", ("a",)), Key("s", ("a", 0))]) == ["a", "s/a/0"]
    keys = [
        Key("x", ("y",)),
        Key("", ("x", "y")),
        Key("", ("x/y",)),
        Key("", ("x", "z")),
        Key("", ("0",)),
        Key("", (0,)),
    ]
    assert _names(keys) == ["x:y", "x/y", "x~1y", "x/z", "0", "#0"]


def test_a_training_checkpoint_opens_by_the_keys_of_its_state(store: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    with cairn.Checkpointer(store, "net") as checkpointer:
        checkpointer.save(5, {"model": model, "optimizer": optimizer, "rng": RngState(), "step": 5}).wait()
    with cairn.open("net", store, framework="torch") as opened:
        assert torch.equal(opened["model/weight"][1], model.weight.detach()[1])
        (moment,) = [name for name in opened if name.startswith("optimizer/") and name.endswith("weight/exp_avg")]
        assert torch.equal(opened[moment][...], optimizer.state[model.weight]["exp_avg"])
        assert opened.metadata["step"] == 5


def test_a_store_is_found_as_commands_find_it(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = cairn.open_store(store)
    commit_tree(registry, write_files(tmp_path / "tree", {"m.safetensors": safetensors({"w": SMALL})}))
    registry.close()
    monkeypatch.chdir(store)
    with cairn.open("m@main") as opened:
        assert opened["w"][0, 0, 1] == 1
    monkeypatch.chdir("/")
    monkeypatch.setenv("CAIRN_STORE", str(store))
    with cairn.open("m@latest") as opened:
        assert "w" in opened
    with pytest.raises(NotFoundError):
        cairn.open("m@nothing")


def test_nothing_is_read_after_closing(opened: OpenCheckpoint) -> None:
    tensor = opened["small"]
    with opened:
        tensor[0]
    with pytest.raises(UsageError, match="closed"):
        tensor[0]
    opened.close()


def test_threads_read_at_once(opened: OpenCheckpoint) -> None:
    wrong: list[int] = []

    def read(number: int) -> None:
        for row in range(number, 1500, 97):
            if not np.array_equal(opened["large"][row : row + 50], LARGE[row : row + 50]):
                wrong.append(row)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_what_storage_changed_is_not_returned(site: Site, tmp_path: Path) -> None:
    commit_tree(site.registry(), write_files(tmp_path / "tree", {"m.safetensors": safetensors({"w": LARGE})}))
    opened = cairn.open("m", site.registry())
    for name in site.names(".pack"):
        data = bytearray(site.backend.read(name))
        data[2_000_000 % len(data)] ^= 1
        site.backend.delete(name)
        site.backend.create(name, [data])
    with pytest.raises(IntegrityError):
        opened["w"][...]


@pytest.mark.slow
def test_one_tensor_of_a_gibibyte_costs_its_bytes_and_six_requests(tmp_path: Path) -> None:
    """All that is read after the log is known counts: body, root, pages, chunks."""
    site = new_site(tmp_path / "home", PosixBackend(tmp_path / "store", "store"))
    sizes = [1, 2, 4, 8, 16, 32, 64, 128] + [16] * 49  # MiB, together with the first ones 1 GiB and more
    block = np.random.default_rng(1).integers(0, 1 << 60, (128 << 7, 1024))
    tensors = {f"layers.{number}.weight": block[: size << 7] + number for number, size in enumerate(sizes)}
    assert sum(tensor.nbytes for tensor in tensors.values()) >= 1 << 30
    (tmp_path / "tree").mkdir()
    save_arrays(tensors, tmp_path / "tree" / "m.safetensors")
    commit_tree(site.registry(), tmp_path / "tree")
    for name, tensor in islice(tensors.items(), 8):
        backend = CountingBackend(site.backend)
        registry = site.registry(backend)
        backend.forget()
        np.testing.assert_array_equal(cairn.open("m", registry)[name][...], tensor)
        requests = [
            call.name for call in backend.calls[-backend.requests :] if not call.name.startswith(("log/", "pins/"))
        ]
        assert backend.bytes_read <= 1.2 * tensor.nbytes, name
        # A commit cuts long tensors in runs of 16 MiB for its threads: each run lies in one pack or in two.
        runs = -(-tensor.nbytes // READ_BYTES_MAX)
        assert len(requests) <= 4 + 2 * runs, (name, requests)
    backend.forget()
    assert cairn.open("m", registry)["layers.7.weight"][5:6, :1].shape == (1, 1)
    assert backend.bytes_read < 4 << 20
