"""What Cairn promises on an accelerator, checked and measured in one process on one GPU, in under three minutes.

* capture into pinned memory, `eager` and `overlap`: what is stored is the state at `save`, bit for bit;
* loading to the device, and converting on the way: equal bit for bit, in bounded device and host memory;
* the stall of training by a save, beside `torch.distributed.checkpoint.async_save` with its default stager, and with
  one that is kept (pinned, non-blocking, staging in the background).

`--device cpu` runs the same steps on a small state without any GPU, to see that the check itself works; its numbers
mean nothing. Exits with 1 if a check failed.
"""

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from measure import cpu_model, file_system
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

GIB, MIB = 1 << 30, 1 << 20
# Steps of one timed loop; the save comes before the first.
STEPS = 10
# Device memory that a load may take beside its targets: pieces that are converted on the device, a slab's worth each.
DEVICE_EXTRA_BYTES_MAX = 256 * MIB
Save = Callable[[int], Callable[[], Any]]


class Trained:
    """A stack of square layers in float32 and AdamW, with state as after some steps."""

    def __init__(self, device: str, size: int, dim: int, rows: int, seed: int) -> None:
        torch.manual_seed(seed)
        layers = max(size // (dim * dim * 12), 1)
        self.model = nn.Sequential(*(nn.Linear(dim, dim, bias=False) for _ in range(layers))).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=device == "cuda")
        self.data = torch.randn(rows, dim, device=device)
        self.step()

    def step(self) -> None:
        """One step of training."""
        self.model(self.data).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        """As Cairn takes it."""
        return {"model": self.model, "optimizer": self.optimizer}

    def tensors(self) -> dict[str, torch.Tensor]:
        """As DCP takes it, and for comparing."""
        found = {f"model.{name}": tensor.detach() for name, tensor in self.model.named_parameters()}
        for name, parameter in self.model.named_parameters():
            found |= {f"optimizer.{name}.{kind}": value for kind, value in self.optimizer.state[parameter].items()}
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of its state."""
        return sum(tensor.nbytes for tensor in self.tensors().values())


class Check:
    """One run: where it works, and what has failed so far."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.device, self.rounds, self.folder = arguments.device, arguments.rounds, folder
        self.on_gpu = arguments.device == "cuda"
        dim, rows = (4096, 8192) if self.on_gpu else (256, 64)
        self.make = lambda seed: Trained(self.device, int(arguments.gigabytes * GIB), dim, rows, seed)
        self.failed = 0

    def verdict(self, good: bool, what: str) -> None:
        """Print one line."""
        self.failed += not good
        print(f"{'ok    ' if good else 'FAILED'} {what}", flush=True)

    def sync(self) -> None:
        """Wait for the device."""
        if self.on_gpu:
            torch.cuda.synchronize()

    # --- what is stored is what was there --------------------------------------------------------------

    def capture_and_load(self, mode: str) -> None:
        """Save while training goes on, load elsewhere, compare with a copy made at `save`."""
        import cairn

        run = self.make(1)
        with cairn.Checkpointer(self.folder, mode, capture=mode) as checkpointer:
            checkpointer.save(0, run.state(), blocking=True)
            run.step()
            expected = {name: tensor.clone() for name, tensor in run.tensors().items()}
            self.sync()
            handle = checkpointer.save(1, run.state())
            for _ in range(STEPS):
                run.step()
            self.sync()
            handle.wait()
            pinned = checkpointer._snapshots._arena.reserve(0).is_pinned()
            blocked = handle.stages.blocked
            fresh = self.make(2)
            with self.memory() as taken:
                report = checkpointer.load(fresh.state())
                self.sync()
        assert report is not None
        speed = run.nbytes / GIB / blocked
        self.verdict(equal(fresh.tensors(), expected), f"{mode}: loaded bit for bit what was there at `save`")
        self.verdict(pinned == self.on_gpu, f"{mode}: host memory of the capture is {'' if pinned else 'not '}pinned")
        print(f"       {mode}: training was blocked for {blocked * 1000:.1f} ms, {speed:.1f} GiB of state a second")
        self.told_load("load", run.nbytes, report.seconds["read"], taken)

    def load_with_casts(self) -> None:
        """Load float32 into bfloat16, in rows and columns both."""
        import cairn

        stored = {f"t{i}": tensor for i, tensor in enumerate(self.make(1).model.parameters())}
        with cairn.Checkpointer(self.folder, "casts") as checkpointer:
            checkpointer.save(1, {"weights": {name: tensor.detach() for name, tensor in stored.items()}}, blocking=True)
            fresh = {
                name: torch.zeros_like(tensor.detach().t(), dtype=torch.bfloat16) for name, tensor in stored.items()
            }
            with self.memory() as taken:
                report = checkpointer.load({"weights": {n: t.t() for n, t in fresh.items()}}, casts=True)
                self.sync()
        assert report is not None
        expected = {name: tensor.detach().bfloat16().t() for name, tensor in stored.items()}
        self.verdict(equal(fresh, expected), "float32 loaded into transposed bfloat16, equal to torch's own conversion")
        size = sum(tensor.nbytes for tensor in stored.values())
        self.told_load("load with casts", size, report.seconds["read"], taken)

    def told_load(self, what: str, size: int, seconds: float, taken: dict[str, int]) -> None:
        """Print how fast a load was, and what memory it took beside its targets."""
        device, host = taken["device"], taken["host"]
        print(f"       {what}: {size / GIB:.2f} GiB at {size / GIB / seconds:.2f} GiB/s; beside its targets ", end="")
        print(f"{device / size:.3f} of the state on the device, {host / size:.3f} on the host ({host / MIB:.0f} MiB)")
        good = device <= DEVICE_EXTRA_BYTES_MAX
        self.verdict(good, f"{what}: at most {DEVICE_EXTRA_BYTES_MAX // MIB} MiB of device memory beside its targets")

    @contextmanager
    def memory(self) -> Iterator[dict[str, int]]:
        """Device and host memory at its highest over what was there before."""
        taken = {"device": 0, "host": 0}
        before = 0
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        held = reset_host_peak()
        yield taken
        taken["host"] = max(status("VmHWM") - held, 0)
        if self.on_gpu:
            taken["device"] = torch.cuda.max_memory_allocated() - before

    # --- what a save costs training -------------------------------------------------------------------

    def stalls(self) -> None:
        """The time that a save adds to a loop of steps, contenders in turn."""
        import cairn

        run = self.make(3)
        with (
            cairn.Checkpointer(self.folder, "stall-eager", capture="eager") as eager,
            cairn.Checkpointer(self.folder, "stall-overlap", capture="overlap") as overlap,
            Dcp(run, self.folder / "dcp", None) as plain,
            Dcp(run, self.folder / "dcp", self.stager()) as kept,
        ):
            savers: dict[str, Save] = {
                "cairn, overlap": lambda step: overlap.save(step, run.state()).wait,
                "cairn, eager": lambda step: eager.save(step, run.state()).wait,
                "dcp.async_save, stager kept": kept.save,
                "dcp.async_save, default stager": plain.save,
            }
            seconds: dict[str, list[float]] = {name: [] for name in ("no save", *savers)}
            for number in range(self.rounds + 1):
                seconds["no save"].append(self.loop(run, None, number))
                for name, save in savers.items():
                    seconds[name].append(self.loop(run, save, number))
        middle = {name: median(values[1:]) for name, values in seconds.items()}
        base = middle.pop("no save")
        slowest = middle["dcp.async_save, default stager"] - base
        print(f"       a loop of {STEPS} steps takes {base:.3f} s; a save of {run.nbytes / GIB:.2f} GiB adds")
        for name, value in middle.items():
            stall = value - base
            share = f"{stall / slowest:7.4f} of DCP's default" if slowest > 0 else ""
            print(f"       {name:32} {stall * 1000:9.1f} ms  {share}", flush=True)

    def loop(self, run: Trained, save: Save | None, number: int) -> float:
        """Seconds of a loop, the save included; what goes on behind it is awaited outside."""
        self.sync()
        began = time.perf_counter()
        wait = save(number) if save else None
        for _ in range(STEPS):
            run.step()
        self.sync()
        seconds = time.perf_counter() - began
        if wait:
            wait()
        return seconds

    def stager(self) -> DefaultStager:
        """The fastest stager that DCP has for threads."""
        return DefaultStager(StagingOptions(self.on_gpu, False, self.on_gpu, self.on_gpu))


class Dcp:
    """`torch.distributed.checkpoint.async_save`, as its documentation uses it."""

    def __init__(self, run: Trained, folder: Path, stager: DefaultStager | None) -> None:
        self._run, self._folder, self._stager = run, folder, stager
        self._staged: Any = None
        self._hook = run.optimizer.register_step_pre_hook(lambda *_: self._await_staging())

    def save(self, step: int) -> Callable[[], None]:
        """Begin to save; returns what waits for its end."""
        place = self._folder / f"{id(self)}-{step}"
        answer: Any = dcp.async_save(self._run.tensors(), checkpoint_id=place, async_stager=self._stager)
        self._staged = getattr(answer, "staging_completion", None)
        end = getattr(answer, "upload_completion", answer)

        def wait() -> None:
            end.result()
            shutil.rmtree(place)

        return wait

    def _await_staging(self) -> None:
        if self._staged is not None:
            self._staged.result()
            self._staged = None

    def __enter__(self) -> "Dcp":
        return self

    def __exit__(self, *error: object) -> None:
        self._hook.remove()
        if self._stager is not None:
            self._stager.close()


def equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    """Whether all tensors are alike in every bit, and on equal devices."""
    return found.keys() == expected.keys() and all(
        found[name].device == tensor.device
        and found[name].dtype is tensor.dtype
        and torch.equal(
            found[name].contiguous().reshape(-1).view(torch.uint8), tensor.contiguous().reshape(-1).view(torch.uint8)
        )
        for name, tensor in expected.items()
    )


def status(name: str) -> int:
    """A number of bytes that Linux tells of this process; 0 where there is none."""
    path = Path("/proc/self/status")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


def reset_host_peak() -> int:
    """Let the highest resident set count from here on; returns the present one."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return status("VmHWM")
    return status("VmRSS")


def main() -> int:
    """Check, measure, print; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--gigabytes", type=float, help="size of the state in GiB (default: 2; 0.02 on the CPU)")
    parser.add_argument("--rounds", type=int, default=3, help="timed saves of each contender (default: 3)")
    parser.add_argument("--dir", type=Path, help="where to make the store (default: the temporary folder)")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here: nothing was checked (--device cpu shows that the check itself works)")
        return 0
    arguments.gigabytes = arguments.gigabytes or (2 if arguments.device == "cuda" else 0.02)
    with tempfile.TemporaryDirectory(prefix="cairn-gpu-", dir=arguments.dir) as name:
        folder = Path(name)
        os.environ.update({f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("DATA", "STATE", "CACHE")})
        import cairn

        cairn.create_store(folder)
        device = torch.cuda.get_device_name() if arguments.device == "cuda" else "no accelerator"
        print(f"{device}; {cpu_model()}, {os.cpu_count()} cores; torch {torch.__version__}, ", end="")
        print(f"Python {platform.python_version()}; store on {file_system(folder)}; state {arguments.gigabytes} GiB")
        torch.backends.cuda.matmul.allow_tf32 = True
        check = Check(arguments, folder)
        for mode in ("eager", "overlap"):
            check.capture_and_load(mode)
        check.load_with_casts()
        check.stalls()
    print("all checks hold" if not check.failed else f"{check.failed} checks failed")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
