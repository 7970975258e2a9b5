"""What the ranks of jobs that share reads do."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import cairn
from cairn.core.errors import CairnError
from cairn.store.backends.posix import PosixBackend
from cairn.training import hostreads
from cairn.training import loading as loads
from tests.support.ranks import group

ROWS, COLUMNS = 3000, 1024
SILENCE_SECONDS = 4.0
BITS = torch.arange(ROWS * COLUMNS, dtype=torch.int32).reshape(ROWS, COLUMNS)
# No bits of a NaN, which a cast need not keep.
VALUES = {"a": (BITS + 2**24).view(torch.float32), "b": (BITS * 5 + 2**25).view(torch.float32)}


def save_alone(rank: int, ranks: int, store: str) -> None:
    """Save a state that every rank of a job that follows has all of, or a share of."""
    with cairn.Checkpointer(store, "m") as checkpointer:
        checkpointer.save(1, {"m": dict(VALUES)}, blocking=True)


def load_in_turns(rank: int, ranks: int, store: str, turns: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Load it as each turn says (layout, harm); returns what the reports count, and whether all is right."""
    found = []
    for number, (layout, harm) in enumerate(turns):
        with pytest.MonkeyPatch.context() as patch, group(number, rank, ranks):
            _harm(patch, harm, rank)
            found.append(_load(rank, store, layout, {"none": None, "off": False}.get(harm, True)))
    return found


def _load(rank: int, store: str, layout: str, share: bool | None) -> dict[str, Any]:
    dtype = torch.float64 if layout == "cast" else torch.float32
    state: dict[str, Any] = {name: torch.zeros(ROWS, COLUMNS, dtype=dtype) for name in VALUES}
    if layout == "rows":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        state = {name: _sharded(tensor, mesh, rank) for name, tensor in state.items()}
    if layout == "different" and rank:
        del state["b"]
    if layout == "different" and rank == 2:
        del state["a"]
    with cairn.Checkpointer(store, "m") as checkpointer:
        report = checkpointer.load(
            {"m": state}, resume=False, share_reads=share, casts=layout == "cast", strict=layout != "different"
        )
    assert report is not None
    names = ("bytes_read", "bytes_shared", "bytes_wanted", "requests")
    right = all(_same(tensor, VALUES[name]) for name, tensor in state.items())
    right = right and "cairn-shared" not in Path("/proc/self/maps").read_text()
    return {"right": right, **{name: getattr(report, name) for name in names}}


def _harm(patch: pytest.MonkeyPatch, harm: str, rank: int) -> None:
    if harm == "elsewhere":
        patch.setattr(loads, "host_of_process", lambda: bytes([rank]))
    elif harm == "unreachable" and rank == 1:
        patch.setattr(hostreads, "_map", lambda told: None)
    elif harm == "no memory" and rank == 0:
        patch.setattr(hostreads, "_leave", lambda content, held: b"")
    elif harm == "no room" and rank == 0:
        leave = hostreads._leave
        patch.setattr(
            hostreads, "_leave", lambda content, held: b"" if isinstance(content, int) else leave(content, held)
        )


def load_until_killed(rank: int, ranks: int, store: str) -> dict[str, Any]:
    """Load; rank 1 hangs in its first read of shared bytes, to be killed. A survivor returns its error and when."""
    plain = PosixBackend.read_into

    def hanging(self: PosixBackend, name: str, offset: int, target: Any) -> int:
        print("reading", flush=True)
        time.sleep(600)
        return plain(self, name, offset, target)

    with (
        pytest.MonkeyPatch.context() as patch,
        group(0, rank, ranks, barrier=False),
        cairn.Checkpointer(store, "m", silence_seconds=SILENCE_SECONDS) as checkpointer,
    ):
        if rank == 1:
            patch.setattr(PosixBackend, "read_into", hanging)
        try:
            state = {"m": {name: torch.zeros(ROWS, COLUMNS) for name in VALUES}}
            checkpointer.load(state, resume=False, share_reads=True)
        except CairnError as error:
            return {"error": str(error), "at": time.time()}
    raise AssertionError("nothing was noticed")


def _sharded(tensor: torch.Tensor, mesh: Any, rank: int) -> DTensor:
    local = tensor.chunk(mesh.size(), 0)[rank].clone()
    return DTensor.from_local(local, mesh, [Shard(0)], shape=tensor.shape, stride=tensor.stride())


def _same(found: Any, value: torch.Tensor) -> bool:
    if isinstance(found, DTensor):
        value, found = value.chunk(dist.get_world_size(), 0)[dist.get_rank()], found.to_local()
    return torch.equal(found, value.to(found.dtype))
