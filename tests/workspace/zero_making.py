"""Folders as DeepSpeed lays them out, made from its documents and its published code, not by it.

Its own `zero_to_fp32.py` (0.19) reads the master weights of stages 2 and 3 from them as they are meant.

Stages 1 and 2: the parameters of a group end to end, padded to twice the ranks, cut in one partition a rank. Stage 3:
each parameter padded and cut in one part a rank, a rank's parts end to end. Universal: a folder a parameter.
"""

import enum
import sys
import types
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]


@contextmanager
def deepspeed_classes() -> Iterator[dict[str, Any]]:
    """Classes under the names that the real ones have, as long as files are written."""

    @dataclass
    class fragment_address:
        numel: int
        start: int

    class ZeroStageEnum(int, enum.Enum):
        one, two, three = 1, 2, 3

    class LossScaler:
        def __init__(self) -> None:
            self.cur_scale = 1.0

    places = {
        "deepspeed.utils.tensor_fragment": fragment_address,
        "deepspeed.runtime.zero.config": ZeroStageEnum,
        "deepspeed.runtime.fp16.loss_scaler": LossScaler,
    }
    packages = {place.rsplit(".", depth)[0] for place in places for depth in range(place.count(".") + 1)}
    sys.modules.update({package: types.ModuleType(package) for package in packages})
    for place, kind in places.items():
        kind.__module__, kind.__qualname__ = place, kind.__name__
        setattr(sys.modules[place], kind.__name__, kind)
    try:
        yield {kind.__name__: kind for kind in places.values()}
    finally:
        for package in packages:
            del sys.modules[package]


def parameters(*shapes: tuple[int, ...]) -> Tensors:
    torch.manual_seed(len(shapes))
    return {f"layers.{number}.weight": torch.randn(shape) for number, shape in enumerate(shapes)}


def moments_of(tensors: Tensors) -> dict[str, Tensors]:
    """Master weights and moments; each element tells where it belongs."""
    kinds = {"exp_avg": 0.25, "exp_avg_sq": 0.5}
    state = {kind: {name: tensor * factor for name, tensor in tensors.items()} for kind, factor in kinds.items()}
    return {"fp32_param": {name: tensor.clone() for name, tensor in tensors.items()}, **state}


def write_stage_2(
    folder: Path, groups: list[Tensors], ranks: int, *, told: bool = True, unpadded: bool = True, **model: Any
) -> None:
    """`mp_rank_00_model_states.pt` and a file of partitions a rank."""
    folder.mkdir(parents=True)
    state = [moments_of(group) for group in groups]
    align = 2 * ranks
    with deepspeed_classes() as classes:
        for rank in range(ranks):
            flats: dict[str, list[torch.Tensor]] = {}
            mappings = []
            for group, held in zip(groups, state, strict=True):
                total = sum(tensor.numel() for tensor in group.values())
                part = -(-total // align) * align // ranks
                for kind, tensors in held.items():
                    flat = torch.cat([tensor.reshape(-1) for tensor in tensors.values()])
                    flat = torch.cat([flat, torch.zeros(part * ranks - total)])
                    end = min(part * (rank + 1), total) if kind == "fp32_param" and unpadded else part * (rank + 1)
                    flats.setdefault(kind, []).append(flat[part * rank : max(end, part * rank)].clone())
                addresses, at = OrderedDict(), 0
                for name, tensor in group.items():
                    low, high = max(at, part * rank), min(at + tensor.numel(), part * (rank + 1))
                    if low < high:
                        addresses[name] = classes["fragment_address"](high - low, low - part * rank)
                    at += tensor.numel()
                mappings.append(addresses)
            optimizer: dict[str, Any] = {
                "loss_scaler": classes["LossScaler"](), "clip_grad": 1.0, "ds_version": "0.19.8",
                "zero_stage": classes["ZeroStageEnum"](2), "partition_count": [ranks] * len(groups),
                "single_partition_of_fp32_groups": flats.pop("fp32_param"),
                "base_optimizer_state": {
                    "state": {
                        number: {"step": torch.tensor(9.0), **{kind: some[number] for kind, some in flats.items()}}
                        for number in range(len(groups))
                    },
                    "param_groups": [{"lr": 0.1 * n, "betas": (0.9, 0.95), "params": [n]} for n in range(len(groups))],
                },
            }  # fmt: skip
            if told:
                optimizer["param_slice_mappings"] = mappings
            name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
            torch.save({"optimizer_state_dict": optimizer, "ds_config": {}}, folder / name)
        module = {name: tensor.bfloat16() for group in groups for name, tensor in group.items()}
        top = {
            "module": module, "buffer_names": ["seen"], "optimizer": None,
            "param_shapes": [OrderedDict((name, tensor.shape) for name, tensor in group.items()) for group in groups],
            "frozen_param_shapes": None, "frozen_param_fragments": None, "shared_params": {}, "global_steps": 9,
            "dp_world_size": ranks, "lr_scheduler": {"last_epoch": 9},
        }  # fmt: skip
        torch.save(top | model, folder / "mp_rank_00_model_states.pt")


def write_stage_3(folder: Path, groups: list[Tensors], ranks: int, frozen: Tensors, **model: Any) -> None:
    """A file of model states and one of partitions a rank; `module` has placeholders for what is partitioned."""
    folder.mkdir(parents=True)

    def part(tensor: torch.Tensor, rank: int) -> torch.Tensor:
        size = -(-tensor.numel() // ranks)
        flat = torch.cat([tensor.reshape(-1), torch.full((size * ranks - tensor.numel(),), 7.0)])
        return flat[rank * size : (rank + 1) * size].clone()

    with deepspeed_classes() as classes:
        for rank in range(ranks):
            flats: dict[str, list[torch.Tensor]] = {}
            for group in groups:
                for kind, tensors in moments_of(group).items():
                    flats.setdefault(kind, []).append(torch.cat([part(one, rank) for one in tensors.values()]))
            optimizer = {
                "zero_stage": classes["ZeroStageEnum"](3), "loss_scaler": classes["LossScaler"](),
                "partition_count": ranks, "fp32_flat_groups": flats.pop("fp32_param"),
                "optimizer_state_dict": {
                    "state": {
                        number: {"step": 9, **{kind: some[number] for kind, some in flats.items()}}
                        for number in range(len(groups))
                    },
                    "param_groups": [{"lr": 0.1, "params": list(range(len(groups)))}],
                },
            }  # fmt: skip
            name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
            torch.save({"optimizer_state_dict": optimizer}, folder / name)
            names = [name for group in groups for name in group] + list(frozen)
            top = {
                "module": {name: torch.empty(0) for name in names} | {"seen": torch.arange(3)},
                "buffer_names": ["seen"], "shared_params": {}, "global_steps": 9,
                "param_shapes": [OrderedDict((name, t.shape) for name, t in group.items()) for group in groups],
                "frozen_param_shapes": OrderedDict((name, tensor.shape) for name, tensor in frozen.items()),
                "frozen_param_fragments": {name: part(tensor, rank) for name, tensor in frozen.items()},
            }  # fmt: skip
            torch.save(top | model, folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")


def write_universal(folder: Path, tensors: Tensors, module: Tensors | None) -> None:
    """`zero/<parameter>/` with `fp32.pt`, the moments and the step."""
    for kind, some in moments_of(tensors).items():
        for name, tensor in some.items():
            place = folder / "zero" / name
            place.mkdir(parents=True, exist_ok=True)
            file = place / f"{'fp32' if kind == 'fp32_param' else kind}.pt"
            torch.save({"param": tensor, "cat_dim": 0}, file)
            torch.save(9, place / "step.pt")
    if module is not None:
        top = {"module": module, "global_steps": 9, "universal_checkpoint_info": {"universal_checkpoint_version": 0.4}}
        torch.save(top, folder / "mp_rank_00_model_states.pt")
