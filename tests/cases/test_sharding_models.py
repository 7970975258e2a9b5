"""Group S, what a job holds together: stages of a pipeline, experts, several optimizers, ties, layouts of content."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from tests.cases.slices import along, chunked, numbered, wrong
from tests.support.threads import Fleet

State = dict[str, Any]
WIDTH = 4


class Layer(nn.Module):
    """A projection and the experts of one layer that this rank has, under their global numbers."""

    def __init__(self, experts: Sequence[int]) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False)
        self.experts = nn.ModuleDict({str(n): nn.Linear(WIDTH, 2 * WIDTH, bias=False) for n in experts})


class Part(nn.Module):
    """The layers that this rank has, under their global numbers."""

    def __init__(self, layers: Sequence[int], experts: Sequence[int] = ()) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(n): Layer(experts) for n in layers})


def whole_value(name: str, kind: str, like: torch.Tensor) -> torch.Tensor:
    """What a tensor of the whole model holds, by its name alone."""
    return (torch.arange(like.numel()).reshape(like.shape) + hash_of(name + kind)).to(like.dtype)


def hash_of(text: str) -> int:
    return sum((n + 1) * ord(letter) for n, letter in enumerate(text))


def adam_over(parts: Sequence[nn.Module], filled: bool) -> torch.optim.AdamW:
    """An optimizer with state for some modules, which are filled or emptied together with it."""
    named = [pair for part in parts for pair in part.named_parameters()]
    optimizer = torch.optim.AdamW([p for _, p in named], lr=0.25 if filled else 0.5)
    for name, parameter in named:
        with torch.no_grad():
            parameter.copy_(whole_value(name, "", parameter) * filled)
        if filled:
            moments = {kind: whole_value(name, kind, parameter.detach()) for kind in ("exp_avg", "exp_avg_sq")}
            optimizer.state[parameter] = {"step": torch.tensor(5.0), **moments}
    return optimizer


def rank_state(parts: list[nn.Module], filled: bool, *, split: bool = False) -> State:
    """Modules and optimizers of one rank; `split` gives each module an optimizer of its own."""
    optimizers = [adam_over([part], filled) for part in parts] if split else [adam_over(parts, filled)]
    return {"model": parts, "optimizer": optimizers, "step": 5 * filled}


def unlike(state: State) -> list[str]:
    """Names of what is not as the whole model has it."""
    found = [] if state["step"] == 5 else ["step"]
    for optimizer in state["optimizer"]:
        found += [] if optimizer.param_groups[0]["lr"] == 0.25 else ["lr"]
    states = {p: held for optimizer in state["optimizer"] for p, held in optimizer.state.items()}
    for part in state["model"]:
        for name, parameter in part.named_parameters():
            held = states.get(parameter, {})
            if not torch.equal(parameter, whole_value(name, "", parameter)) or held.get("step") != 5.0:
                found.append(name)
            found += [
                f"{name}.{kind}"
                for kind in ("exp_avg", "exp_avg_sq")
                if kind not in held or not torch.equal(held[kind], whole_value(name, kind, parameter))
            ]
    return found


def pipeline(stages: Sequence[Sequence[int]], filled: bool, experts: Sequence[int] = ()) -> list[State]:
    """One stage a rank."""
    return [rank_state([Part(layers, experts)], filled) for layers in stages]


def names_of(fleet: Fleet, model: str, scope: str) -> set[str]:
    return {name for name in fleet.entries(model) if name.startswith(f"{scope}:")}


# --- Pipelines --------------------------------------------------------------------------------------

PIPELINES = {
    "interleaved": [[0, 2], [1, 3]],
    "in a row": [[0, 1], [2, 3]],
    "four stages": [[0], [1], [2], [3]],
    "uneven": [[0, 1, 2], [3]],
    "one": [[0, 1, 2, 3]],
}


@pytest.mark.parametrize("stages", PIPELINES.values(), ids=PIPELINES)
def test_S16_the_names_of_all_stages_are_saved(fleet: Fleet, stages: list[list[int]]) -> None:
    fleet.save("m", pipeline(stages, True))
    assert names_of(fleet, "m", "model") == {f"model:layers.{n}.mix.weight" for n in range(4)}
    assert len(names_of(fleet, "m", "optimizer")) == 4 * 3


def test_S16_a_stage_that_did_not_save_its_layer_is_noticed(fleet: Fleet) -> None:
    fleet.save("m", pipeline([[0, 2], [1]], True))
    cause = fleet.refused_load("m", pipeline([[0, 2], [1, 3]], False))
    assert "the checkpoint lacks" in cause and "layers.3.mix.weight" in cause
    assert "layers.1" not in cause
    cause = fleet.refused_load("m", pipeline([[0], [1]], False))
    assert "the state lacks" in cause and "layers.2.mix.weight" in cause


@pytest.mark.parametrize("source", PIPELINES)
def test_S43_how_a_pipeline_was_saved_does_not_steer_its_load(fleet: Fleet, source: str) -> None:
    fleet.save("m", pipeline(PIPELINES[source], True))
    for name, stages in PIPELINES.items():
        targets = pipeline(stages, False)
        fleet.load("m", targets)
        assert [unlike(target) for target in targets] == [[]] * len(stages), name


def test_S17_every_part_of_a_rank_and_every_optimizer_is_saved(fleet: Fleet) -> None:
    """Two stages interleaved, each on two ranks that share its experts: four parts and four optimizers in all."""

    def states(filled: bool) -> list[State]:
        def rank(stage: int, experts: list[int]) -> State:
            return rank_state([Part([stage], experts), Part([stage + 2], experts)], filled, split=True)

        return [rank(stage, experts) for stage in (0, 1) for experts in ([0, 1], [2, 3])]

    fleet.save("m", states(True))
    parameters = 4 * (1 + 4)
    assert len(names_of(fleet, "m", "model")) == parameters
    assert len(names_of(fleet, "m", "optimizer")) == 3 * parameters
    for targets in (states(False), pipeline([range(4)], False, range(4))):
        fleet.load("m", targets)
        assert [unlike(target) for target in targets] == [[]] * len(targets)


def test_S17_optimizers_that_differ_are_no_one_optimizer(fleet: Fleet) -> None:
    state = rank_state([Part([0]), Part([1])], True, split=True)
    state["optimizer"][1].param_groups[0]["lr"] = 0.125
    assert "two optimizers under optimizer" in fleet.refused_save("m", [state])
    state["optimizer"] = dict(zip(("first", "second"), state["optimizer"], strict=True))
    fleet.save("m", [state])
    back = rank_state([Part([0]), Part([1])], False, split=True)
    back["optimizer"] = dict(zip(("first", "second"), back["optimizer"], strict=True))
    fleet.load("m", [back])
    assert [one.param_groups[0]["lr"] for one in back["optimizer"].values()] == [0.25, 0.125]


def test_S42_local_names_of_stages_collide_and_are_refused(fleet: Fleet) -> None:
    def stage(first: int) -> State:
        part = Part([0, 1])
        with torch.no_grad():
            for n, parameter in enumerate(part.parameters()):
                parameter.fill_(first + n)
        return {"model": part}

    cause = fleet.refused_save("m", [stage(0), stage(2)])
    for name in ("layers.0.mix.weight", "layers.1.mix.weight"):
        assert f"model:{name} differs between ranks 0 and 1" in cause
    one_rank = {"model": [stage(0)["model"], stage(2)["model"]]}
    assert "two modules under 'model' have a 'layers.0.mix.weight' of their own" in fleet.refused_save("m", [one_rank])


def test_S42_equal_bytes_under_colliding_names_do_not_cover_the_others(fleet: Fleet) -> None:
    """Just initialised, both stages are alike: nothing differs, but half of the model has no name."""
    local = [{"model": Part([0, 1])} for _ in range(2)]
    for state in local:
        for parameter in state["model"].parameters():
            nn.init.ones_(parameter)
    fleet.save("m", local)
    cause = fleet.refused_load("m", [{"model": Part([0, 1, 2, 3])}])
    assert "the checkpoint lacks" in cause and "layers.2.mix.weight" in cause and "layers.3.mix.weight" in cause


# --- Experts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [3, 1 << 16], ids=["in line", "in tiles"])
def test_S19_each_expert_comes_back_as_itself(fleet: Fleet, columns: int) -> None:
    full = torch.arange(8.0)[:, None, None].expand(8, 2, columns).contiguous()
    for ranks in (2, 4):
        fleet.save("m", [{"experts": one} for one in along(full, chunked(8, ranks))])
        assert fleet.whole("m", "experts")["experts"][:, 0, 0].tolist() == list(range(8))
        for readers in (1, 2, 3, 8):
            targets = along(full, chunked(8, readers), filled=False)
            fleet.load("m", [{"experts": one} for one in targets])
            assert not wrong(targets, full)


def test_S19_experts_of_all_ranks_under_one_name_are_no_replicas(fleet: Fleet) -> None:
    states = [{"experts": {str(n): torch.full((2, 3), 4.0 * rank + n) for n in range(4)}} for rank in range(2)]
    cause = fleet.refused_save("m", states)
    assert all(f"experts:{n} differs between ranks 0 and 1" in cause for n in range(4))


def expert_parallel(ranks: int, filled: bool) -> list[State]:
    """Each rank has all layers, and its share of the experts of each."""
    return [rank_state([Part(range(4), chunk.tolist())], filled) for chunk in torch.arange(4).chunk(ranks)]


def test_S25_a_pipeline_loads_as_experts_and_back(fleet: Fleet) -> None:
    four_stages = [[0], [1], [2], [3]]
    layouts = {
        "PP4": lambda filled: pipeline(four_stages, filled, range(4)),
        "EP4": lambda filled: expert_parallel(4, filled),
        "EP2": lambda filled: expert_parallel(2, filled),
        "single": lambda filled: expert_parallel(1, filled),
    }
    for source, make in layouts.items():
        fleet.save(source, make(True))
        for target, other in layouts.items():
            states = other(False)
            fleet.load(source, states)
            assert [unlike(state) for state in states] == [[]] * len(states), f"{source} -> {target}"


def test_S25_stacked_experts_are_cut_along_both_axes(fleet: Fleet) -> None:
    """One tensor [layer, expert, out, in] for weights and moments: PP4 cuts its first axis, TP2 x EP2 two others."""
    weight, moment = numbered(4, 4, 6, 5), -numbered(4, 4, 6, 5)

    def states(ranks: int, axes: list[int], filled: bool) -> list[State]:
        def cut(full: torch.Tensor) -> list[Any]:
            if len(axes) == 1:
                return along(full, chunked(full.shape[axes[0]], ranks), axes[0], filled)
            return grid(full, axes, filled)

        pairs = zip(cut(weight), cut(moment), strict=True)
        return [{"model": {"w": w}, "optim": {"w": {"exp_avg": m}}} for w, m in pairs]

    layouts: dict[str, tuple[int, list[int]]] = {
        "PP4": (4, [0]), "EP4": (4, [1]), "TP2 x EP2": (4, [2, 1]), "single": (1, [0]), "TP3": (3, [2]),
    }  # fmt: skip
    for source, layout in layouts.items():
        fleet.save(source, states(*layout, filled=True))
        for target, other in layouts.items():
            into = states(*other, filled=False)
            fleet.load(source, into)
            assert not wrong([s["model"]["w"] for s in into], weight), f"{source} -> {target}"
            assert not wrong([s["optim"]["w"]["exp_avg"] for s in into], moment), f"{source} -> {target}"


def grid(full: torch.Tensor, axes: list[int], filled: bool) -> list[Any]:
    """Halves along two axes: four ranks."""
    from tests.cases.slices import at

    halves = [[(0, s // 2), (s // 2, s - s // 2)] if n in axes else [(0, s)] for n, s in enumerate(full.shape)]
    boxes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), ())]
    for choices in halves:
        boxes = [((*o, start), (*n, length)) for o, n in boxes for start, length in choices]
    return [at(full, box, filled) for box in boxes]
