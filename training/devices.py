"""Copying to and from an accelerator beside what it computes.

* **lane** - a stream of copies of one device; they run in the order in which they are given to it.
* **mark** - a place in a lane; it is reached when all copies given before are done.

Host memory has no lane: it is copied at once.
"""

from collections.abc import Iterable
from functools import cache
from typing import Protocol

import torch


class Mark(Protocol):
    """A place in a lane."""

    @property
    def reached(self) -> bool:
        """Whether all copies before it are done; never waits."""
        ...

    def wait(self) -> None:
        """Return when it is reached."""
        ...

    def hold(self) -> None:
        """Let the device do what this thread gives it from here on after the mark is reached; the host goes on."""
        ...


class Lane(Protocol):
    """A stream of copies. Several threads may give it copies."""

    def follow(self) -> None:
        """Begin further copies only when the device has done what this thread has given it so far."""
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Begin to copy, and convert where the dtypes differ; both stay as they are until a later mark is reached.

        The host's side is to be pinned memory, else the host waits.
        """
        ...

    def mark(self) -> Mark:
        """The place after all copies so far."""
        ...


class _CudaMark:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        # A host that waits for it sleeps instead of spinning: the cores are training's.
        self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch has no types there
        self._event.record(stream)
        self._device = stream.device

    @property
    def reached(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]  # torch has no types there

    def wait(self) -> None:
        self._event.synchronize()

    def hold(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._event)


class _CudaLane:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no types there

    def follow(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        with torch.no_grad(), torch.cuda.stream(self._stream):
            if target.is_cuda and target.dtype is not source.dtype:
                # Torch would convert on the host, into memory that is not pinned.
                source = source.to(self._device, non_blocking=True)
            target.copy_(source, non_blocking=True)

    def mark(self) -> Mark:
        return _CudaMark(self._stream)


@cache
def _cuda_lane(device: torch.device) -> Lane:
    return _CudaLane(device)


def lane_of(device: torch.device) -> Lane | None:
    """The lane of a device, one for the whole process; None where copies are done at once."""
    return _cuda_lane(device) if device.type == "cuda" else None


def lanes_of(tensors: Iterable[torch.Tensor]) -> list[Lane]:
    """The lanes of all devices where tensors lie."""
    lanes = (lane_of(device) for device in dict.fromkeys(tensor.device for tensor in tensors))
    return [lane for lane in lanes if lane is not None]
