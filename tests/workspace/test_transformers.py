"""Folders that `transformers` saves, committed, written in other formats, and loaded by it again, all offline."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

import cairn
from cairn.registry.selectors import resolve
from cairn.workspace.export import ExportOptions, export
from tests.support.stores import Site, commit_tree

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers.*", "ignore::FutureWarning:transformers.*"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield


def tiny(tied: bool) -> torch.nn.Module:
    """A language model of two small layers, made from a configuration."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=200, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=tied,
    )  # fmt: skip
    model: torch.nn.Module = transformers.LlamaForCausalLM(config)
    return model


def assert_same(path: Path, model: torch.nn.Module, tied: bool) -> None:
    """`from_pretrained` finds all weights, and none that it does not know."""
    import transformers

    read, told = transformers.AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"] and not told["mismatched_keys"]
    expected = model.state_dict()
    assert read.state_dict().keys() == expected.keys()
    assert all(tensor.equal(expected[name]) for name, tensor in read.state_dict().items())
    shares = read.get_input_embeddings().weight.data_ptr() == read.get_output_embeddings().weight.data_ptr()
    assert shares is tied


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shard_bytes", [100_000, 5_000_000_000])
def test_a_folder_of_transformers_comes_out_as_one(site: Site, tmp_path: Path, tied: bool, shard_bytes: int) -> None:
    model = tiny(tied)
    model.save_pretrained(tmp_path / "in", max_shard_size="60KB")  # type: ignore[operator]  # of PreTrainedModel
    registry = site.registry()
    commit_tree(registry, tmp_path / "in")
    options = ExportOptions("safetensors", shard_bytes=shard_bytes)
    export(registry, *resolve(registry, "m"), tmp_path / "out", options)
    assert ("model.safetensors.index.json" in os.listdir(tmp_path / "out")) == (shard_bytes < 1_000_000)
    assert_same(tmp_path / "out", model, tied)


@pytest.mark.parametrize("tied", [True, False])
def test_a_trained_model_becomes_a_folder_of_transformers(site: Site, tmp_path: Path, tied: bool) -> None:
    model = tiny(tied)
    registry = site.registry()
    with cairn.Checkpointer(registry, "m") as checkpointer:
        checkpointer.save(1, {"model": model, "step": 1}, blocking=True)
    export(registry, *resolve(registry, "m"), tmp_path / "out", ExportOptions("safetensors"))
    model.config.save_pretrained(tmp_path / "out")  # type: ignore[union-attr,operator]  # of PreTrainedModel
    assert_same(tmp_path / "out", model, tied)


FORMS = ("safetensors", "torch", "dcp")


@pytest.mark.parametrize("first", FORMS)
@pytest.mark.parametrize("second", FORMS)
def test_S35_S38_every_pair_of_formats(site: Site, tmp_path: Path, first: str, second: str) -> None:
    """Out of a store in one format, into another checkpoint, out in a second: the same tensors by the same names."""
    tensors = {
        "a.weight": torch.randn(300, 1100), "a.bias": torch.randn(7).bfloat16(), "scalar": torch.tensor(2.5),
        "empty": torch.empty(3, 0), "ids": torch.arange(10), "mask": torch.tensor([True, False]),
    }  # fmt: skip
    registry = site.registry()
    with cairn.Checkpointer(registry, "m0") as checkpointer:
        checkpointer.save(1, {"model": dict(tensors)}, blocking=True)
    for number, form in enumerate((first, second)):
        out = tmp_path / f"{number}"
        export(registry, *resolve(registry, f"m{number}"), out, ExportOptions(form, shard_bytes=500_000))
        if form == "safetensors":  # names of files and how many there are play no part
            for part, path in enumerate(sorted(out.glob("*.safetensors"))):
                path.rename(out / f"part_{'xyz'[part]}.safetensors")
            for index in out.glob("*.json"):
                index.unlink()
        commit_tree(registry, out, f"m{number + 1}")
    final = tmp_path / "final"
    export(registry, *resolve(registry, "m2"), final, ExportOptions("torch"))
    read = torch.load(final / "model.pt", weights_only=True)
    # A dict in a file is part of the name once a format is flat.
    read = {name.removeprefix("model."): tensor for name, tensor in read.get("model", read).items()}
    assert read.keys() == tensors.keys()
    assert all(read[name].equal(tensor) and read[name].dtype is tensor.dtype for name, tensor in tensors.items())


def test_an_accelerate_like_folder_of_dcp_becomes_one_of_transformers(site: Site, tmp_path: Path) -> None:
    """What FSDP trainers leave: the weights in a DCP folder within the folder of the step, the configuration beside."""
    model = tiny(tied=False)
    tree = tmp_path / "checkpoint-10"
    tree.mkdir()
    (tree / "config.json").write_text(json.dumps(model.config.to_dict(), default=str))  # type: ignore[union-attr,operator]  # of PreTrainedModel
    dcp.save({"model": model.state_dict()}, checkpoint_id=tree / "pytorch_model_fsdp_0", no_dist=True)
    registry = site.registry()
    commit_tree(registry, tree)
    export(registry, *resolve(registry, "m"), tmp_path / "out", ExportOptions("safetensors"))
    shutil.move(tmp_path / "out/model/model.safetensors", tmp_path / "out/model.safetensors")
    assert load_file(tmp_path / "out/model.safetensors").keys() == model.state_dict().keys()
    assert_same(tmp_path / "out", model, tied=False)
