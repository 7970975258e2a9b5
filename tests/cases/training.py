"""What a trainer has around a checkpointer: runs one after the other at one store, and a small net."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

import cairn
from cairn.core.clock import Clock, SystemClock
from cairn.store.backends.contract import Backend
from tests.support.stores import new_site

State = dict[str, Any]
MODEL = "m"


class Runs:
    """Training runs at one store; each opens it anew, as another process would."""

    def __init__(self, folder: Path, backend: Backend | None = None, clock: Clock | None = None) -> None:
        self.site = new_site(folder, backend, clock=clock or SystemClock())

    @contextmanager
    def checkpointer(self, through: Backend | None = None, *, cold: bool = False, **options: Any) -> Iterator[Any]:
        """A run's checkpointer.

        Args:
            through: a wrapper around the store's backend.
            cold: without anything that this host remembers.
        """
        registry = self.site.registry(through, cold=cold)
        try:
            with cairn.Checkpointer(registry, MODEL, **options) as checkpointer:
                yield checkpointer
        finally:
            registry.close()

    def save(self, state: State, step: int = 1, **options: Any) -> cairn.SaveHandle:
        """A run that saves once."""
        with self.checkpointer(**options) as checkpointer:
            return checkpointer.save(step, state, blocking=True)

    def load(self, state: State, ref: str = "latest", *, cold: bool = True, **options: Any) -> cairn.LoadReport:
        """A run that loads and does no more."""
        with self.checkpointer(cold=cold) as checkpointer:
            report = checkpointer.load(state, ref, resume=False, **options)
        assert report is not None
        return report


class Net(nn.Module):
    """Two layers; making them draws from no global generator."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            self.a = nn.Linear(8, 8, dtype=dtype)
            self.b = nn.Linear(8, 4, bias=False, dtype=dtype)
        fill(self.parameters(), seed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.a(x)))


def fill(tensors: Iterator[nn.Parameter], seed: int) -> None:
    """Random values."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in tensors:
        with torch.no_grad():
            tensor.copy_(torch.randn(tensor.shape, generator=generator))


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: Sequence[int], *, keep: bool = False) -> None:
    """One step for each number, on data that depends on the number alone; gradients stay if asked for."""
    for step in steps:
        gradients(net, step)
        optimizer.step()
        if not keep:
            optimizer.zero_grad()


def gradients(net: nn.Module, step: int = 0) -> None:
    """Fresh gradients on every parameter."""
    net.zero_grad()
    parameter = next(net.parameters())
    data = torch.randn(16, 8, generator=torch.Generator().manual_seed(1000 + step)).to(parameter.dtype)
    net(data).square().mean().backward()


def bits(value: Any) -> Any:
    """A tree with each tensor as dtype, shape and bytes, so that equal means equal in every bit."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().contiguous().reshape(-1).view(torch.uint8)
        return str(value.dtype), tuple(value.shape), bytes(plain.tolist()), str(value.device)
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(bits(item) for item in value)
    return value


def moments(optimizer: torch.optim.Optimizer) -> list[Any]:
    """State of each parameter, in order, bit for bit."""
    return [bits(dict(optimizer.state.get(p, {}))) for g in optimizer.param_groups for p in g["params"]]


def groups(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Hyperparameters of each group."""
    return [{k: bits(v) for k, v in group.items() if k != "params"} for group in optimizer.param_groups]


@contextmanager
def forbidden(owner: Any, name: str, why: str) -> Iterator[None]:
    """While it lasts, nobody may call a function of a class or module."""
    real: Callable[..., Any] = getattr(owner, name)

    def refuse(*arguments: Any, **more: Any) -> None:
        raise AssertionError(why)

    setattr(owner, name, refuse)
    try:
        yield
    finally:
        setattr(owner, name, real)


def check_is(runs: Runs, step: int, *, cold: bool = True) -> None:
    """The newest checkpoint is that of a step, as a whole."""
    net = Net()
    assert runs.load({"model": net}, cold=cold).step == step
    assert bits(dict(net.state_dict())) == bits(dict(Net(seed=step).state_dict()))


def latest_step(runs: Runs) -> int | None:
    """Step of the newest checkpoint."""
    with runs.checkpointer() as checkpointer:
        return checkpointer.latest()[1]


def cairn_threads() -> list[str]:
    """Threads of ours that run."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("cairn")]


def children() -> list[str]:
    """Child processes of this one."""
    found: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # the thread has just ended
            found += (task / "children").read_text().split()
    return found
