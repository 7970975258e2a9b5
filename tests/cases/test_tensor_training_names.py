"""Group T, names of a live state: paths that do not meet, wrappers that add nothing to a name, coverage."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel

from tests.cases.trees import equal
from tests.support.threads import Fleet, fake_rank

State = dict[str, Any]

# --- Names --------------------------------------------------------------------------------------------

TREES: dict[str, Any] = {
    "dots": {"a.b": torch.tensor(1), "a": {"b": torch.tensor(2)}},
    "slashes": {"a/b": torch.tensor(1), "a": {"b": torch.tensor(2)}, "a/": {"b": torch.tensor(3)}},
    "numbers": {0: torch.tensor(1), "0": torch.tensor(2), -1: torch.tensor(3), "-1": [torch.tensor(4)]},
    "empty names": {"": {"": torch.tensor(1)}, "~": torch.tensor(2)},
    "lists and dicts of numbers": {"l": [torch.tensor(1)], "d": {0: torch.tensor(2)}, "t": (torch.tensor(3), 4)},
    "empty containers beside tensors": {"w": torch.tensor(1), "d": {}, "l": [], "t": (), "n": None},
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_T10_paths_of_a_state_do_not_meet(fleet: Fleet, tree: Any) -> None:
    fleet.save("m", [{"tree": tree}])
    assert equal(fleet.whole("m", "tree")["tree"], tree)


def test_T10_a_container_without_tensors_is_a_value_and_no_schema(fleet: Fleet) -> None:
    fleet.save("m", [{"k": [{"a": 1}, {"b": 2}], "odd": {(1, 2): {"x"}}, "w": torch.ones(2)}])
    assert list(fleet.entries("m")) == ["w:~"]
    for template in ([], [{"c": 3}], None, {"a": 1}):
        target: State = {"k": template, "odd": {}, "w": torch.zeros(2)}
        fleet.load("m", [target])
        assert target["k"] == [{"a": 1}, {"b": 2}] and target["odd"] == {(1, 2): {"x"}} and target["w"].all()


_names = st.one_of(st.integers(-2, 2), st.text("a./:~0\\%", max_size=3))
_leaves = st.one_of(st.integers(0, 9).map(torch.tensor), st.integers(), st.text(max_size=2), st.none())
_trees = st.recursive(
    _leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_names, inner, max_size=4)),
    max_leaves=8,
)
_numbers = count()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=st.dictionaries(st.text("a./:~", min_size=1, max_size=3), _trees, min_size=1, max_size=3))
def test_T10_T33_random_states_come_back_as_they_are(fleet: Fleet, tree: State) -> None:
    model = f"m{next(_numbers)}"
    fleet.save(model, [tree])
    assert equal(fleet.whole(model, *tree), tree)


def dotted(nested: bool, flat: bool) -> nn.Module:
    """A module that has 'norm.1' as one name, as two, or both."""
    model = nn.Module()
    if flat:
        model._modules["norm.1"] = nn.Linear(2, 2, bias=False)
    if nested:
        model.norm = nn.ModuleDict({"1": nn.Linear(2, 2, bias=False)})
    return model


def test_T33_a_dotted_name_that_meets_a_path_is_refused(fleet: Fleet) -> None:
    cause = fleet.refused_save("m", [{"model": dotted(nested=True, flat=True)}])
    assert "'norm.1.weight'" in cause
    fleet.save("m", [{"model": dotted(nested=False, flat=True)}])
    assert list(fleet.entries("m")) == ["model:norm.1.weight"], "an opaque name, as torch gives it"
    back = dotted(nested=False, flat=True)
    fleet.load("m", [{"model": back}])


# --- Wrappers of modules --------------------------------------------------------------------------------


class Inner(nn.Module):
    """What is wrapped."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
        self.register_buffer("seen", torch.zeros(2))
        for tensor in (*self.parameters(), *self.buffers()):
            nn.init.constant_(tensor, value)


def _checkpointed(model: Inner) -> nn.Module:
    model.a[0] = checkpoint_wrapper(model.a[0])
    return checkpoint_wrapper(model)


def _distributed(model: nn.Module) -> nn.Module:
    with fake_rank(0, 1):
        return DistributedDataParallel(model)


WRAPPERS: dict[str, Callable[[Any], nn.Module]] = {
    "bare": lambda model: model,
    "compiled": torch.compile,
    "data parallel": _distributed,
    "checkpointed": _checkpointed,
    "compiled inside": lambda model: _distributed(torch.compile(_checkpointed(model))),
    "compiled outside": lambda model: torch.compile(_distributed(_checkpointed(model))),
}


def wrapped(name: str, value: float) -> tuple[Inner, State]:
    """A bare module, and the state in which it is wrapped."""
    inner = Inner(value)
    outer = WRAPPERS[name](inner)
    optimizer = torch.optim.SGD(outer.parameters(), lr=0.1, momentum=0.9)
    for parameter in outer.parameters():
        optimizer.state[parameter] = {"momentum_buffer": torch.full_like(parameter, value, requires_grad=False)}
    return inner, {"model": outer, "optimizer": optimizer}


@pytest.mark.parametrize("source", WRAPPERS)
def test_T30_names_are_those_of_the_bare_module(fleet: Fleet, source: str) -> None:
    fleet.save("m", [wrapped(source, 3.0)[1]])
    names = {f"a.{n}.{kind}" for n in (0, 1) for kind in ("weight", "bias")}
    moments = {f"optimizer:state/{name}/momentum_buffer" for name in names}
    assert set(fleet.entries("m")) == {f"model:{name}" for name in (*names, "seen")} | moments
    for target in WRAPPERS:
        inner, state = wrapped(target, 0.0)
        (report,) = fleet.load("m", [state])
        assert all((tensor == 3).all() for tensor in (*inner.parameters(), *inner.buffers())), target
        assert all((held["momentum_buffer"] == 3).all() for held in state["optimizer"].state.values())
        assert report.tensors == 9 and report.skipped == ()


def test_T30_what_is_not_covered_is_an_error_unless_asked(fleet: Fleet) -> None:
    """A name with a prefix that Cairn does not know as a wrapper's is another name."""
    fleet.save("m", [{"model": nn.ModuleDict({"_orig_mod": nn.Linear(2, 2), "extra": nn.Linear(1, 1)})}])
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    cause = fleet.refused_load("m", [{"model": model}])
    for name in ("model:weight", "model:bias", "model:_orig_mod.weight", "model:extra.bias"):
        assert name in cause
    (report,) = fleet.load("m", [{"model": model}], strict=False)
    assert report.tensors == 0 and len(report.skipped) == 6 and "model:weight" in report.skipped
    assert torch.equal(model.weight, before)
