"""Copying captured state while training goes on, until an optimizer wants to change it.

Only what a hooked optimizer owns may be deferred: its parameters and its state change in `step` alone, and a hook
that runs before `step` waits for the copy. The hook helps to copy instead of looking on; an accelerator waits for its
copies itself, while the host goes on.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from torch.optim import Optimizer

from cairn.core.errors import StateMismatch
from cairn.training.capture import Capture
from cairn.training.devices import Mark
from cairn.training.encode import yield_to_training

# Slots compared once more after the copy, since writes past autograd's counters (numpy, `.data`) leave no trace.
_SAMPLES = 4
_SAMPLE_BYTES = 1 << 20


class Deferred:
    """The deferred slots of one capture."""

    def __init__(self, capture: Capture, slots: Sequence[int], names: Callable[[int], str]) -> None:
        """Copies show what is there now, in the order of the calling thread."""
        capture.prepare(slots)
        self._capture, self._names = capture, names
        self._slots = list(slots)
        self._batches = deque(capture.batches(slots))
        self._open = len(self._batches)
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._marks: list[Mark] = []
        self._looked = False
        self._versions = [capture.plan.slots[number].source._version for number in slots]

    def copy(self) -> None:
        """Copy until nothing is left; several threads may. What the calling thread does from here on comes after it.

        Host memory is copied when this returns, by whomever. An accelerator may copy still, before its next work.

        Raises:
            StateMismatch: the state was changed meanwhile, other than by the hooked step.
        """
        self._begin()
        self._look_once()
        for mark in self._marks:
            mark.hold()

    def finish(self) -> None:
        """Copy until nothing is left; returns when all bytes are there.

        Raises:
            StateMismatch: see `copy`.
        """
        self._begin()
        for mark in self._marks:
            mark.wait()
        self._look_once()

    def _begin(self) -> None:
        while True:
            try:
                batch = self._batches.popleft()
            except IndexError:
                break
            error: BaseException | None = None
            try:
                self._capture.begin(batch)
            except BaseException as caught:
                error = caught
            with self._changed:
                self._error = self._error or error
                self._open -= 1
                if not self._open:
                    self._marks = [lane.mark() for lane in self._capture.lanes(self._slots)]
                self._changed.notify_all()
        with self._changed:
            self._changed.wait_for(lambda: not self._open)

    def _look_once(self) -> None:
        """Look for changes, before the first who may go on changes anything."""
        with self._changed:
            if not self._looked and self._error is None:
                self._error = self._breach()
            self._looked = True
            if self._error is not None:
                raise self._error

    @property
    def done(self) -> bool:
        """Whether all is copied, and was looked at for changes."""
        with self._changed:
            return self._looked and all(mark.reached for mark in self._marks)

    def _breach(self) -> StateMismatch | None:
        slots = self._capture.plan.slots
        changed = [
            number
            for number, version in zip(self._slots, self._versions, strict=True)
            if slots[number].source._version != version
        ]
        # Comparing what an accelerator holds would wait for all that it computes.
        small = (n for n in self._slots if slots[n].nbytes <= _SAMPLE_BYTES and not self._capture.lanes([n]))
        samples = list(islice(small, _SAMPLES))
        changed += [number for number in samples if not self._capture.same(number)]
        if not changed:
            return None
        names = ", ".join(dict.fromkeys(self._names(slots[number].leaf) for number in changed[:8]))
        return StateMismatch(
            f"{len(changed)} tensors were changed while they were captured, not by the optimizer's step: {names}",
            hint="wait for handle.captured before changing them, or use capture='eager'",
        )


class StepHooks:
    """One pre-hook on each optimizer whose state may be deferred."""

    def __init__(self, before_step: Callable[[], None]) -> None:
        self._before_step = before_step
        self._handles: dict[int, Any] = {}

    def watch(self, optimizers: Sequence[Optimizer]) -> None:
        """Hook optimizers that are not hooked yet."""
        for optimizer in optimizers:
            if id(optimizer) not in self._handles:
                self._handles[id(optimizer)] = optimizer.register_step_pre_hook(self._hook)

    def _hook(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._before_step()

    def remove(self) -> None:
        """Unhook all."""
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()


def copy_in_background(deferred: Deferred, settle: Callable[[BaseException | None], None]) -> threading.Thread:
    """Copy on a thread of its own that gives way to training; `settle` is told how it ended."""

    def work() -> None:
        yield_to_training()
        try:
            deferred.finish()
        except BaseException as error:
            settle(error)
        else:
            settle(None)

    thread = threading.Thread(target=work, name="cairn-capture", daemon=True)
    thread.start()
    return thread
