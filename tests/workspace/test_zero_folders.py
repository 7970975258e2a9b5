"""DeepSpeed's folders (made from its documents, see `zero_making.py`), consolidated by parameter."""

from pathlib import Path
from typing import Any

import pytest
import torch

import cairn
from cairn.core.errors import BadInput
from cairn.registry.selectors import resolve
from cairn.workspace.export import ExportOptions, export
from tests.support.stores import Site, commit_tree
from tests.workspace.zero_making import Tensors, moments_of, parameters, write_stage_2, write_stage_3, write_universal

# Sizes that no number of ranks divides, one larger than a tile, one smaller than the ranks.
GROUPS = [parameters((7,), (9,), (11, 3), (700, 601)), {"norm": torch.randn(2), "bias": torch.randn(5, 1)}]


def taken_up(site: Site, folder: Path, out: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Commit a folder; its state as one torch file has it, and what the commit said."""
    registry = site.registry()
    done = commit_tree(registry, folder)
    export(registry, *resolve(registry, "m"), out, ExportOptions("torch"))
    return torch.load(out / "model.pt", weights_only=True), done.warnings


def assert_moments(read: dict[str, Any], tensors: Tensors) -> None:
    for kind, some in moments_of(tensors).items():
        for name, tensor in some.items():
            assert read["optimizer"]["state"][name][kind].equal(tensor), (kind, name)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("unpadded", [True, False])
def test_S32_S33_stages_1_and_2_of_any_number_of_ranks(
    site: Site, tmp_path: Path, ranks: int, told: bool, unpadded: bool
) -> None:
    write_stage_2(tmp_path / "in", GROUPS, ranks, told=told, unpadded=unpadded)
    (tmp_path / "in/zero_to_fp32.py").write_text("pass")
    read, said = taken_up(site, tmp_path / "in", tmp_path / "out")
    for group in GROUPS:
        assert_moments(read, group)
        assert all(read["module"][name].equal(tensor.bfloat16()) for name, tensor in group.items())
    assert read["optimizer"]["param_groups"][1]["params"] == ["norm", "bias"]
    assert read["optimizer"]["param_groups"][0]["betas"] == (0.9, 0.95)
    assert read["optimizer"]["state"]["norm"]["step"] == 9
    assert read["training"]["global_steps"] == 9 and read["training"]["lr_scheduler"] == {"last_epoch": 9}
    assert "DeepSpeed ZeRO-2 checkpoint" in said[0] and f"of {ranks} ranks" in said[1] and "padding" in said[1]
    assert (tmp_path / "out/zero_to_fp32.py").exists()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_S27_S31_stage_3_equals_a_gathered_copy_frozen_parameters_too(site: Site, tmp_path: Path, ranks: int) -> None:
    frozen = {"frozen.a": torch.randn(5, 3), "frozen.b": torch.randn(1)}
    write_stage_3(tmp_path / "in", GROUPS, ranks, frozen)
    read, said = taken_up(site, tmp_path / "in", tmp_path / "out")
    whole = GROUPS[0] | GROUPS[1] | frozen | {"seen": torch.arange(3)}
    assert read["module"].keys() == whole.keys()
    assert all(read["module"][name].equal(tensor) for name, tensor in whole.items())
    for group in GROUPS:
        assert_moments(read, group)
    elements = sum(tensor.numel() for group in GROUPS for tensor in group.values())
    assert f"6 trained parameters of {elements} elements" in said[1]


def test_S27_S33_what_was_saved_by_some_ranks_loads_as_any_other_checkpoint(site: Site, tmp_path: Path) -> None:
    write_stage_3(tmp_path / "in", GROUPS, 4, {})
    registry = site.registry()
    commit_tree(registry, tmp_path / "in")
    module = {name: torch.zeros_like(tensor) for group in GROUPS for name, tensor in group.items()}
    with cairn.Checkpointer(registry, "m") as checkpointer:
        checkpointer.load({"module": module}, resume=False, strict=False)
    assert all(module[name].equal(tensor) for group in GROUPS for name, tensor in group.items())


@pytest.mark.parametrize("stage", [2, 3])
def test_S29_S30_shared_parameters_are_tied_again(site: Site, tmp_path: Path, stage: int) -> None:
    weights = {"layer1.weight": torch.randn(200, 200), "other": torch.randn(3)}
    shared = {"layer2.weight": "layer1.weight"}
    if stage == 3:
        write_stage_3(tmp_path / "in", [weights], 2, {}, shared_params=shared)
    else:
        module = {name: tensor.bfloat16() for name, tensor in weights.items()}
        module["layer2.weight"] = module["layer1.weight"]
        write_stage_2(tmp_path / "in", [weights], 2, module=module, shared_params=shared)
    read = taken_up(site, tmp_path / "in", tmp_path / "out")[0]["module"]
    assert read["layer2.weight"].data_ptr() == read["layer1.weight"].data_ptr() != read["other"].data_ptr()
    assert read["layer2.weight"].float().allclose(weights["layer1.weight"], atol=0.02)


@pytest.mark.parametrize("with_module", [True, False])
def test_universal_folders(site: Site, tmp_path: Path, with_module: bool) -> None:
    half = {name: tensor.bfloat16() for name, tensor in GROUPS[0].items()}
    write_universal(tmp_path / "in", GROUPS[0], half if with_module else None)
    read, said = taken_up(site, tmp_path / "in", tmp_path / "out")
    assert_moments(read, GROUPS[0])
    expected = half if with_module else GROUPS[0]
    assert all(read["module"][name].equal(tensor) for name, tensor in expected.items())
    assert read["optimizer"]["state"]["layers.0.weight"]["step"] == 9 and "DeepSpeed Universal" in said[0]


def test_S15_parts_of_tensor_parallelism_are_refused_since_no_file_tells_their_order(
    site: Site, tmp_path: Path
) -> None:
    write_stage_2(tmp_path / "in", GROUPS, 2)
    for name in ("bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt", "mp_rank_01_model_states.pt"):
        (tmp_path / "in" / name).write_bytes((tmp_path / "in" / name.replace("_01_", "_00_")).read_bytes())
    with pytest.raises(BadInput, match="tensor or pipeline parallelism") as caught:
        commit_tree(site.registry(), tmp_path / "in")
    assert "ds_to_universal" in caught.value.hint and "--opaque" in caught.value.hint
    assert commit_tree(site.registry(), tmp_path / "in", opaque=True).files == 5


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("lost", ["first", "last", "model"])
def test_a_missing_rank_is_named(site: Site, tmp_path: Path, stage: int, lost: str) -> None:
    if stage == 2:
        write_stage_2(tmp_path / "in", GROUPS, 3)
    else:
        write_stage_3(tmp_path / "in", GROUPS, 3, {})
    files = sorted((tmp_path / "in").glob("*model*" if lost == "model" else "*optim*"))
    files[-1 if lost == "last" else 0].unlink()
    with pytest.raises(BadInput, match=r"missing|of 3 ranks|not [13]"):
        commit_tree(site.registry(), tmp_path / "in")


def test_S32_partitions_that_do_not_add_up(site: Site, tmp_path: Path) -> None:
    write_stage_2(tmp_path / "in", GROUPS, 2)
    name = "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    other = tmp_path / "other"
    write_stage_2(other, [parameters((7,), (9,)), GROUPS[1]], 2)
    (tmp_path / "in" / name).write_bytes((other / name).read_bytes())
    with pytest.raises(BadInput, match="group 0 has"):
        commit_tree(site.registry(), tmp_path / "in")


def test_S31_a_placeholder_is_no_parameter(site: Site, tmp_path: Path) -> None:
    write_stage_3(tmp_path / "in", [GROUPS[1]], 2, {}, module={"lost": torch.empty(0), "norm": torch.empty(0)})
    with pytest.raises(BadInput, match="'lost', only a placeholder"):
        commit_tree(site.registry(), tmp_path / "in")


@pytest.mark.parametrize("name", ["expp_rank_0_mp_rank_00_optim_states.pt", "layer_00-model_states.pt"])
def test_experts_and_stages_in_files_of_their_own_are_refused(site: Site, tmp_path: Path, name: str) -> None:
    write_stage_2(tmp_path / "in", GROUPS, 2)
    torch.save({}, tmp_path / "in" / name)
    with pytest.raises(BadInput, match="files of their own"):
        commit_tree(site.registry(), tmp_path / "in")


def test_a_module_without_its_parameters_is_refused(site: Site, tmp_path: Path) -> None:
    write_stage_2(tmp_path / "in", GROUPS, 2, module=None)
    with pytest.raises(BadInput, match="lacks 6 parameters"):
        commit_tree(site.registry(), tmp_path / "in")
