"""What one process measures of saving and loading a training state: Cairn, torch.distributed.checkpoint, and files.

Each case runs in a process of its own (`python training_cases.py CASE FOLDER MEGABYTES`) and prints one JSON object.
Every contender gets the same state: a stack of linear layers and AdamW's moments, float32.
"""

import ctypes
import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from primitives import primitives
from torch import nn

# Steps of a training loop: the device computes for so long, while the host waits, then the optimizer steps on the host.
STEPS, DEVICE_SECONDS = 10, 0.5
DIM = 1024
Measured = dict[str, Any]


class Block(nn.Module):
    """The matrices of a transformer's layer: square, wide and tall ones."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, DIM)
        self.up = nn.Linear(DIM, 4 * DIM)
        self.down = nn.Linear(4 * DIM, DIM)
        self.norm = nn.LayerNorm(DIM)


class Run:
    """A model and its optimizer, with state that one step would have made."""

    def __init__(self, megabytes: int, seed: int = 0) -> None:
        torch.manual_seed(seed)
        # A block has 12 DIM² parameters, of 4 bytes, three times over.
        blocks = max(megabytes * 10**6 // (12 * DIM * DIM * 12), 1)
        self.model = nn.ModuleList([Block() for _ in range(blocks)])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, foreach=True)
        for parameter in self.model.parameters():
            parameter.grad = torch.randn_like(parameter) * 1e-3
        self.optimizer.step()
        self.nbytes = sum(t.numel() * t.element_size() for t in self.flat().values())

    def flat(self) -> dict[str, torch.Tensor]:
        """The state as a flat dict of tensors, as the other contenders want it."""
        found = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for kind, value in self.optimizer.state[parameter].items():
                found[f"optimizer.{name}.{kind}"] = value
        return found

    def state(self, step: int) -> dict[str, Any]:
        """The state as Cairn wants it."""
        return {"model": self.model, "optimizer": self.optimizer, "step": step}

    def change(self, share: float) -> None:
        """Change this share of all tensors."""
        left = self.nbytes * share
        for tensor in self.flat().values():
            if left >= tensor.nbytes > 4:
                tensor.detach().add_(1e-3)
                left -= tensor.nbytes


def clock() -> float:
    """Seconds."""
    return time.perf_counter()


def timed(do: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    began = clock()
    do()
    return clock() - began


def peak_of(do: Callable[[], Any]) -> int:
    """By how many bytes a call raises the resident set at its highest."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    do()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


# --- Contenders -----------------------------------------------------------------------------------


def open_checkpointer(folder: Path, model: str, **options: Any) -> Any:
    """A checkpointer on a store in the folder, made if there is none."""
    import cairn

    store = folder / "store"
    if not store.exists():
        store.mkdir()
        cairn.create_store(store)
    return cairn.Checkpointer(store, model, **options)


def savers(folder: Path, run: Run) -> dict[str, Callable[[int], Any]]:
    """Saves that return when the state is durable, by contender."""
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file

    checkpointer = open_checkpointer(folder, "m")

    def synced(save: Callable[[Path], Any], path: Path) -> None:
        save(path)
        with path.open("rb") as file:
            os.fsync(file.fileno())

    return {
        "cairn": lambda step: checkpointer.save(step, run.state(step), blocking=True),
        "dcp.save": lambda step: dcp.save(run.flat(), checkpoint_id=folder / f"dcp{step}", no_dist=True),
        "torch.save": lambda step: synced(lambda path: torch.save(run.flat(), path), folder / f"torch{step}.pt"),
        "safetensors": lambda step: synced(lambda path: save_file(run.flat(), path), folder / f"{step}.safetensors"),
    }


# --- Cases ----------------------------------------------------------------------------------------


def steps(run: Run, count: int = STEPS) -> None:
    """A training loop as the host sees it."""
    for _ in range(count):
        time.sleep(DEVICE_SECONDS)
        run.optimizer.step()


def stall(folder: Path, megabytes: int, contender: str) -> Measured:
    """How long one save blocks training, and what it adds to the steps that follow; the first save is apart."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    run = Run(megabytes)
    stager: Any = None
    handles: list[Any] = []
    if contender.startswith("cairn"):
        checkpointer = open_checkpointer(folder, "m", capture=contender.removeprefix("cairn-"))

        def save(step: int) -> None:
            handles.append(checkpointer.save(step, run.state(step)))

        def finish() -> None:
            checkpointer.wait()
    else:
        if contender == "dcp-reused":
            options = StagingOptions(use_pinned_memory=False, use_shared_memory=True, use_async_staging=False,
                                     use_non_blocking_copy=False)  # fmt: skip
            stager = DefaultStager(options)

        def save(step: int) -> None:
            where = folder / f"async{step}"
            handles.append(dcp.async_save(run.flat(), checkpoint_id=where, no_dist=True, async_stager=stager))

        def finish() -> None:
            handles[-1].result()

    first = timed(lambda: save(0))
    finish()
    steps(run, 1)
    plain = [timed(lambda: steps(run, 1)) for _ in range(STEPS)]
    began = clock()
    blocked = timed(lambda: save(1))
    steps(run)
    stepped = clock() - began
    finish()
    durable = clock() - began
    # The machine's pace drifts by more than a save adds, hence steps before and after are the measure.
    step = median(plain + [timed(lambda: steps(run, 1)) for _ in range(STEPS)])
    if contender.startswith("cairn"):
        blocked = handles[-1].stages.blocked
        checkpointer.close()
    copy = [torch.empty_like(tensor) for tensor in run.flat().values()]
    torch._foreach_copy_(copy, list(run.flat().values()))
    memcpy = timed(lambda: torch._foreach_copy_(copy, list(run.flat().values())))
    return {
        "bytes": run.nbytes, "first": first, "blocked": blocked, "added": stepped - STEPS * step, "durable": durable,
        "step": step, "memcpy": memcpy,
    }  # fmt: skip


def durable(folder: Path, megabytes: int, contender: str) -> Measured:
    """Seconds until durable: everything new, half of it changed since, a tenth of it changed since; bytes written."""
    run = Run(megabytes)
    save = savers(folder, run)[contender]
    save(0)
    found: Measured = {"bytes": run.nbytes}
    for step, (name, share) in enumerate((("all", 1.0), ("half", 0.5), ("tenth", 0.1)), start=1):
        run.change(share)
        os.sync()
        before = written()
        found[name] = timed(partial(save, step))
        found[f"{name}_written"] = written() - before
    return found


def written() -> int:
    """Bytes that this process has given to the file system."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def load(folder: Path, megabytes: int, contender: str) -> Measured:
    """Seconds to load into tensors that exist, page cache warm: the layout that was saved, and two others."""
    import torch.distributed.checkpoint as dcp

    run = Run(megabytes)
    if contender.startswith("primitives"):
        once = primitives(folder, run.nbytes, digest=not contender.endswith("aead"))
        seconds = [timed(once) for _ in range(3)]
        return {"bytes": run.nbytes, "same": min(seconds)}
    names = {"cairn": "cairn", "cairn-aead": "cairn", "dcp.load": "dcp.save"}
    name = names.get(contender, contender)
    savers(folder, run)[name](0)
    found: Measured = {"bytes": run.nbytes}
    targets: dict[str, Any] = {"same": None}
    if name in ("cairn", "dcp.save"):
        targets |= {"rows": 0, "columns": 1}
    for layout, dim in targets.items():
        with parallel(dim) as place:
            seconds = []
            for _ in range(3):
                other = Run(megabytes, seed=1) if dim is None else None
                tensors: dict[str, Any] = (
                    other.flat() if other else {k: place(torch.empty(v.shape)) for k, v in run.flat().items()}
                )
                if name == "cairn":
                    verify = "aead" if contender == "cairn-aead" else "digest"
                    checkpointer = open_checkpointer(folder, "m", rendezvous=_alone())
                    state = other.state(0) if other else _by_scope(tensors)
                    seconds.append(timed(lambda c=checkpointer, s=state, v=verify: c.load(s, verify=v, resume=False)))
                    checkpointer.close()
                elif name == "dcp.save":
                    seconds.append(timed(lambda t=tensors: dcp.load(t, checkpoint_id=folder / "dcp0", no_dist=True)))
                elif name == "torch.save":
                    seconds.append(timed(lambda t=tensors: _copy_all(t, torch.load(folder / "torch0.pt"))))
                else:
                    seconds.append(timed(lambda t=tensors: _copy_all(t, _safetensors(folder / "0.safetensors"))))
            found[layout] = min(seconds)
            if dim is None:
                wrong = [key for key, value in tensors.items() if not torch.equal(value, run.flat()[key])]
                assert not wrong, wrong[:3]
    return found


def _alone() -> Any:
    from cairn.training.rendezvous import Alone

    return Alone()


def _by_scope(tensors: dict[str, Any]) -> dict[str, Any]:
    """A flat dict under the names that Cairn gave: the model's tensors, and the optimizer's by parameter."""
    model = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
    state: dict[str, Any] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            name, _, kind = key.removeprefix("optimizer.").rpartition(".")
            state.setdefault(name, {})[kind] = value
    return {"model": model, "optimizer": {"state": state}}


def _copy_all(targets: dict[str, torch.Tensor], loaded: dict[str, torch.Tensor]) -> None:
    for name, target in targets.items():
        target.detach().copy_(loaded[name])


def _safetensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


@contextmanager
def parallel(dim: int | None) -> Iterator[Callable[[torch.Tensor], Any]]:
    """As rank 1 of a job of 4 that does not exist, with tensors cut along one dimension; of None, as no job."""
    if dim is None:
        yield lambda tensor: tensor
        return
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    mesh = init_device_mesh("cpu", (4,))

    def place(tensor: torch.Tensor) -> Any:
        if tensor.ndim <= dim:
            return tensor
        local = tensor.chunk(4, dim)[1].contiguous()
        return DTensor.from_local(local, mesh, [Shard(dim)], shape=tensor.shape, stride=tensor.stride())

    yield place
    dist.destroy_process_group()


def memory(folder: Path, megabytes: int, contender: str) -> Measured:
    """Extra resident bytes while saving and loading, and whether they grow over thirty saves."""
    run = Run(megabytes)
    checkpointer = open_checkpointer(folder, "m", capture=contender.removeprefix("cairn-"))
    found: Measured = {"bytes": run.nbytes}
    found["save"] = peak_of(lambda: checkpointer.save(0, run.state(0), blocking=True))
    other = Run(megabytes, seed=1)
    checkpointer.close()
    with open_checkpointer(folder, "m") as checkpointer:
        found["load"] = peak_of(lambda: checkpointer.load(other.state(0)))
    small = Run(64)
    with open_checkpointer(folder, "small") as checkpointer:
        sizes = []
        for step in range(30):
            small.change(1.0)
            checkpointer.save(step, small.state(step), blocking=True)
            sizes.append(_status("VmRSS"))
    found["after_10"], found["after_30"] = sizes[9], sizes[29]
    return found


def interpreter(folder: Path, megabytes: int, contender: str) -> Measured:
    """How much a Python loop of small tensor operations slows down while a save goes on in the background."""
    torch.set_num_threads(1)
    run = Run(megabytes)
    checkpointer = open_checkpointer(folder, "m", capture=contender.removeprefix("cairn-"))
    checkpointer.save(0, run.state(0), blocking=True)
    small = torch.zeros(16)

    def loop(until: Callable[[], bool]) -> float:
        count, began = 0, clock()
        while not until():
            for _ in range(100):
                small.add_(1.0)
            count += 100
        return (clock() - began) / count

    def for_seconds(seconds: float) -> Callable[[], bool]:
        end = clock() + seconds
        return lambda: clock() > end

    loop(for_seconds(0.5))
    alone = loop(for_seconds(2.0))
    run.change(1.0)
    handle = checkpointer.save(1, run.state(1))
    handle.captured.result()
    busy = loop(handle.committed.done)
    again = loop(for_seconds(2.0))
    checkpointer.close()
    return {"bytes": run.nbytes, "alone": min(alone, again), "busy": busy}


CASES = {case.__name__: case for case in (stall, durable, load, memory, interpreter)}


def main() -> Iterator[str]:
    """Run one case."""
    name, contender, folder, megabytes = sys.argv[1:5]
    torch.set_num_threads(os.cpu_count() or 1)
    found = CASES[name](Path(folder), int(megabytes), contender)
    found["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    yield json.dumps(found)


if __name__ == "__main__":
    print(*main())
