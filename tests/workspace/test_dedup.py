"""The same tensors in one file, in five shards, or in a torch file are stored once."""

from pathlib import Path

import numpy as np
import pytest
import torch

from cairn.core.errors import BadName
from cairn.registry.compare import compare
from cairn.registry.models import history
from cairn.registry.registry import Registry
from tests.formats.support import torch_file
from tests.support.stores import Site, checkout_to, commit_tree, tip
from tests.support.tensors import Array, safetensors, weights
from tests.support.trees import snapshot, write_files

TENSORS: dict[str, Array] = {
    **{f"layers.{number}.weight": weights(number, 300, 257) for number in range(10)},
    "embed": weights(20, 700, 600),
    "norm": weights(21, 100),
    "bias": weights(22, 8),
}
BYTES = sum(array.nbytes for array in TENSORS.values())


def shards(number: int) -> dict[str, bytes]:
    names = list(TENSORS)
    parts = [names[at::number] for at in range(number)]
    files = {f"m-{at}.safetensors": safetensors({n: TENSORS[n] for n in part}) for at, part in enumerate(parts)}
    assert sum(len(part) for part in parts) == len(names)
    return files


def as_torch() -> dict[str, bytes]:
    return {"pytorch_model.bin": torch_file({name: torch.from_numpy(array) for name, array in TENSORS.items()})}


def stored_bytes(site: Site) -> int:
    return sum(site.backend.size(name) for name in site.names(".pack"))


def check(registry: Registry, tree: Path, selector: str) -> None:
    out = tree.with_name(f"out-{tree.name}")
    checkout_to(registry, selector, out)
    assert snapshot(out) == snapshot(tree)


def test_containers_share_their_tensors(site: Site, tmp_path: Path) -> None:
    registry = site.registry()
    forms = {"one": {"m.safetensors": safetensors(TENSORS)}, "five": shards(5), "torch": as_torch()}
    sizes, new = [], []
    for step, (form, files) in enumerate(forms.items()):
        tree = write_files(tmp_path / form, files)
        result = commit_tree(registry, tree, step=step)
        assert result.tensors == len(TENSORS)
        sizes.append(stored_bytes(site))
        new.append(result.counts.bytes_new)
        check(registry, tree, "m")
    assert new[0] > 0.99 * BYTES
    # What is new is headers, and what the zip archive puts between tensors.
    assert max(new[1:]) < 0.02 * BYTES
    assert sizes[2] < 1.05 * sizes[0]
    difference = compare(registry, tip(registry, "m@step:0"), tip(registry, "m@step:2"))
    assert (difference.tensors, difference.tensors_equal) == ([], len(TENSORS))


def test_the_order_of_tensors_in_a_file_does_not_matter(site: Site, tmp_path: Path) -> None:
    registry = site.registry()
    commit_tree(registry, write_files(tmp_path / "a", {"m.safetensors": safetensors(TENSORS)}))
    backwards = dict(reversed(TENSORS.items()))
    result = commit_tree(registry, write_files(tmp_path / "b", {"m.safetensors": safetensors(backwards)}))
    assert result.counts.bytes_new < 4000
    check(registry, tmp_path / "b", "m")


def test_a_changed_tensor_costs_its_changed_tiles(site: Site, tmp_path: Path) -> None:
    registry = site.registry()
    big = weights(1, 2048, 2048)  # 16 MiB in 16 tiles
    commit_tree(
        registry, write_files(tmp_path / "a", {"m.safetensors": safetensors({"big": big, "same": weights(2, 500)})})
    )
    big = big.copy()
    big[5, 5] += 1
    result = commit_tree(
        registry, write_files(tmp_path / "b", {"m.safetensors": safetensors({"big": big, "same": weights(2, 500)})})
    )
    assert 1 << 20 <= result.counts.bytes_new <= 2 << 20
    (change,) = compare(registry, tip(registry, f"m@{history_ids(registry)[1]}"), tip(registry)).tensors
    assert (change.kind, change.tiles_changed) == ("changed", 1)
    assert change.tiles is not None and change.tiles > 8
    check(registry, tmp_path / "b", "m")


def history_ids(registry: Registry) -> list[str]:
    model, checkpoint = tip(registry)
    return [line.id.hex() for line in history(registry, model, checkpoint)]


def test_equal_files_zeros_and_models_share(site: Site, tmp_path: Path) -> None:
    data = np.random.default_rng(3).bytes(300_000)
    tree = write_files(tmp_path / "a", {"x": data, "copy/x": data, "zeros": bytes(5 << 20)})
    registry = site.registry()
    assert commit_tree(registry, tree).counts.bytes_new == 300_000
    assert commit_tree(registry, tree, "another").counts.bytes_new == 0
    check(registry, tree, "another")


def test_an_opaque_commit_shares_with_no_tensor_and_with_its_like(site: Site, tmp_path: Path) -> None:
    tree = write_files(tmp_path / "a", {"m.safetensors": safetensors(TENSORS)})
    registry = site.registry()
    commit_tree(registry, tree)
    opaque = commit_tree(registry, tree, "opaque", opaque=True)
    assert (opaque.tensors, opaque.counts.bytes_new) == (0, len((tree / "m.safetensors").read_bytes()))
    assert commit_tree(registry, tree, "opaque", opaque=True, step=1).counts.bytes_new == 0
    check(registry, tree, "opaque")


# --- Commits that change nothing --------------------------------------------------------------


def test_an_unchanged_tree_makes_no_checkpoint(site: Site, tmp_path: Path) -> None:
    tree = write_files(tmp_path / "tree", {"m.safetensors": safetensors(TENSORS), "a": b"x" * 500})
    registry = site.registry()
    first = commit_tree(registry, tree, step=1, message="one")
    before = site.names()
    for reader in (registry, site.registry(), site.registry(cold=True)):
        again = commit_tree(reader, tree, step=1, message="one")
        assert (again.created, again.checkpoint) == (False, first.checkpoint)
    assert site.names() == before


def test_what_makes_a_new_checkpoint(site: Site, tmp_path: Path) -> None:
    tree = write_files(tmp_path / "tree", {"a": b"x" * 500, "sub/b": b"y"})
    registry = site.registry()
    seen = {commit_tree(registry, tree).checkpoint}

    def is_new(**options: object) -> bool:
        result = commit_tree(registry, tree, **options)
        seen.add(result.checkpoint)
        return result.created and len(seen) == len(registry.state.models[result.model].checkpoints)

    assert is_new(step=1)
    assert is_new(step=1, message="text")
    assert is_new(step=1, message="text", always=True)
    (tree / "a").chmod(0o600)
    assert is_new(step=1, message="text")
    (tree / "sub" / "new").mkdir()
    assert is_new(step=1, message="text")
    (tree / "sub" / "b").rename(tree / "sub" / "c")
    assert is_new(step=1, message="text")
    assert not is_new(step=1, message="text")
    assert is_new(branch="other")
    assert not is_new(branch="other")


def test_a_commit_to_a_name_that_cannot_be_is_refused_first(site: Site, tmp_path: Path) -> None:
    for model, branch in (("", "main"), ("m", "latest"), ("\udc80", "main")):
        with pytest.raises(BadName):
            commit_tree(site.registry(), tmp_path / "absent", model, branch=branch)
