"""`Checkpointer`: saving and loading from a training loop.

with cairn.Checkpointer("path/to/store", "llama") as checkpointer:
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "rng": RngState(), "step": 0}
    checkpointer.load(state, missing_ok=True)
    for step in range(state["step"] + 1, 10_001):
        train(...)
        if step % 100 == 0:
            state["step"] = step
            checkpointer.save(step, state)
"""

import logging
import os
import threading
from collections.abc import Mapping
from concurrent.futures import InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cairn.core.errors import CairnError, SaveFailed, Superseded, UsageError
from cairn.core.ids import CheckpointId, ModelId
from cairn.core.limits import ATTEMPT_SECONDS, CLOSE_SECONDS, RANK_SILENCE_SECONDS
from cairn.registry.models import ensure_model, find_model, open_meta, ref_value
from cairn.registry.names import MAIN, check_model_name, check_ref_name
from cairn.registry.registry import Registry
from cairn.registry.runs import open_run
from cairn.registry.stores import open_store
from cairn.store.codec import CodecPolicy
from cairn.training.agreement import exchange, names_to_agree
from cairn.training.atexit import close_at_exit, forget_at_exit
from cairn.training.capture import Capture, CapturePlan, plan_capture
from cairn.training.handle import SaveHandle, is_local
from cairn.training.hostmemory import Arena
from cairn.training.leaves import Leaves, TensorLeaf
from cairn.training.loading import Loader, LoadOptions, LoadReport
from cairn.training.meeting import meet
from cairn.training.overlap import Deferred, StepHooks, copy_in_background
from cairn.training.ranks import Ranks
from cairn.training.rendezvous import JobStore, Rendezvous
from cairn.training.statesnapshot import deferrable, encoded_values
from cairn.training.tree import Collector, optimizers_in
from cairn.training.writing import Branch, Task, Writer

log = logging.getLogger("cairn.training")


@dataclass(slots=True, eq=False)
class _Pending:
    task: Task
    thread: threading.Thread


class Checkpointer:
    """Saves and loads the state of one training run. Every rank makes one, alike, and calls it alike.

    Not for several threads at once.
    """

    def __init__(
        self,
        store: str | Path | Registry,
        model: str,
        *,
        branch: str = MAIN,
        capture: Literal["eager", "overlap"] = "eager",
        on_busy: Literal["wait", "skip", "supersede"] = "wait",
        host_bytes_max: int | None = None,
        check_replicas_every: int = 10,
        codec: CodecPolicy = CodecPolicy.RAW,
        exactness: str = "",
        provenance: Mapping[str, Any] | None = None,
        rendezvous: Rendezvous | None = None,
        attempt_seconds: float = ATTEMPT_SECONDS,
        close_seconds: float = CLOSE_SECONDS,
        silence_seconds: float = RANK_SILENCE_SECONDS,
    ) -> None:
        """Open the store and meet the other ranks.

        Args:
            store: a path, a URL, or an opened store, which then stays open.
            model: name of the logical model; created by the first save.
            capture: `eager` copies the state inside `save`; `overlap` copies parameters and optimizer state during
                the next forward and backward, and the optimizer's step waits for it.
            on_busy: what `save` does while an earlier one is under way: wait for it, skip, or give the earlier one up
                if it has not reached its commit. With several ranks only `wait`.
            host_bytes_max: most host memory for captured state on this rank.
            check_replicas_every: each so many saves, replicas that other ranks store are compared; 0 for never.
            exactness: what the checkpoint promises; see `manifests/exactness.py`.
            provenance: plain data that becomes part of the checkpoint; see `capture_provenance`.
            rendezvous: how ranks meet; by default through the store of torch.distributed's default group.
            attempt_seconds: how long a save or load may take before it fails.
            close_seconds: how long `close`, and the end of the process, wait for the save under way.
            silence_seconds: after how long without a sign of life a rank is taken for lost.

        Raises:
            NotAStore, NotAllowed: see `open_store`.
        """
        check_model_name(model)
        check_ref_name(branch)
        self._name, self._branch_name, self._mode, self._on_busy = model, branch, capture, on_busy
        self._registry = store if isinstance(store, Registry) else open_store(store)
        self._owns_store = not isinstance(store, Registry)
        self._codec, self._exactness = codec, exactness
        self._provenance = dict(provenance or {})
        self._check_every = check_replicas_every
        self._attempt_seconds, self._close_seconds = attempt_seconds, close_seconds
        opened = self._registry.opened
        meeting = f"{opened.store.hex()}/{model}/{branch}"
        self._ranks = Ranks(rendezvous or JobStore.of_job(meeting), opened.clock, silence_seconds)
        if on_busy != "wait" and self._ranks.count > 1:
            raise UsageError(
                f"on_busy={on_busy!r} would let ranks drop different saves", hint="use 'wait' with several ranks"
            )
        self._ranks.start()
        key = meet(self._ranks, opened, attempt_seconds)
        self._writer = Writer(self._registry, self._ranks, key, codec, attempt_seconds)
        self._arena = Arena(host_bytes_max)
        self._hooks = StepHooks(self._before_step)
        self._branch: Branch | None = None
        self._agreed: dict[int, tuple[int, int]] | None = None
        self._saves, self._loads = 0, 0
        self._pending: _Pending | None = None
        self._deferred: Deferred | None = None
        self._plan: tuple[Any, CapturePlan] | None = None
        self._collector = Collector()
        self._failure: BaseException | None = None
        self._closed = False
        self._process = os.getpid()
        close_at_exit(self)

    # --- saving ------------------------------------------------------------------------------------

    def save(self, step: int, state: dict[str, Any], *, blocking: bool = False, message: str = "") -> SaveHandle:
        """Begin to save; returns when the state is captured (`eager`), or what cannot be deferred is (`overlap`).

        Args:
            state: modules, optimizers, stateful objects, tensors and plain data under string keys.
            blocking: return when the checkpoint is committed.

        Raises:
            SaveFailed, RankLost, ...: an earlier save failed in the background, or this one did; names the step.
            RefusedError: the state cannot be saved; nothing was begun.
        """
        self._check_open()
        started = self._registry.opened.clock.monotonic()
        if self._pending is not None and self._pending.thread.is_alive():
            if self._on_busy == "skip":
                return SaveHandle(step, is_local(self._registry.opened.backend.url), skipped=True)
            self._pending.task.cancelled = self._on_busy == "supersede"
        self._settle()
        handle = SaveHandle(step, is_local(self._registry.opened.backend.url))
        self._saves += 1
        try:
            task = self._captured(step, state, message, handle, started)
        except BaseException as error:
            self._ranks.fail(f"save/{self._saves}", error)
            self._agreed = None
            handle.fail(error)
            raise
        thread = threading.Thread(target=self._run, args=(task,), name="cairn-save", daemon=True)
        self._pending = _Pending(task, thread)
        thread.start()
        handle.stages.blocked += self._registry.opened.clock.monotonic() - started
        if blocking:
            self.wait()
        return handle

    def _captured(self, step: int, state: dict[str, Any], message: str, handle: SaveHandle, started: float) -> Task:
        clock, stages = self._registry.opened.clock, handle.stages
        leaves = self._collector.collect(state)
        handle.notes.extend(leaves.notes)
        values = encoded_values(leaves, self._provenance)
        replan = self._agree(leaves.tensors)
        check = self._check_every > 0 and self._saves % self._check_every == 1 % self._check_every
        capture = self._capture_of(leaves, check and self._ranks.count > 1)
        planned = clock.monotonic()
        stages.plan, stages.bytes_captured = planned - started, capture.plan.nbytes
        numbers = list(range(len(capture.plan.slots)))
        optimizers = optimizers_in(state) if self._mode == "overlap" else []
        deferred = deferrable(leaves.tensors, capture, optimizers) if optimizers else []
        later = set(deferred)
        capture.copy([number for number in numbers if number not in later])
        if deferred:
            self._hooks.watch(optimizers)
            self._deferred = Deferred(capture, deferred, lambda leaf: str(leaves.tensors[leaf].key))
            copy_in_background(self._deferred, lambda error: self._finish_capture(handle, error))
        else:
            handle.captured.set_result(None)
        stages.capture = clock.monotonic() - planned
        return Task(
            self._saves, step, message, leaves.tensors, values, capture, handle, started,
            f"rank={self._ranks.rank}", self._exactness, replan, leaves.notes,
        )  # fmt: skip

    def _agree(self, leaves: list[TensorLeaf]) -> bool:
        """Agree on holders of plain tensors if need be; whether the structure is another than was agreed on."""
        names = list(names_to_agree(leaves, self._ranks.count).values())
        if self._agreed is None:
            self._agreed = exchange(self._ranks, f"save/{self._saves}", names, self._attempt_seconds)
            return False
        return any(name not in self._agreed for name in names)

    def _capture_of(self, leaves: Leaves, check: bool) -> Capture:
        """Lay out the capture; for tensors that were where they are at the last save, as it was then."""
        assert self._agreed is not None
        tensors, lasting = leaves.tensors, leaves.lasting
        if any(holding.local.is_cuda for leaf in tensors for holding in leaf.holdings) and not self._arena.pinned:
            self._arena.release()
            self._arena.pinned = True
        replicas: list[tuple[int, int] | None] = [None] * len(tensors)
        for number, name in names_to_agree(tensors, self._ranks.count).items():
            replicas[number] = self._agreed.get(name, (0, 1))
        same = ([id(leaf) for leaf in tensors[:lasting]], replicas[:lasting], check)
        if self._plan is None or self._plan[0] != same:
            self._plan = same, plan_capture(tensors[:lasting], replicas, check)
        return Capture(plan_capture(tensors, replicas, check, self._plan[1], lasting), self._arena)

    def _finish_capture(self, handle: SaveHandle, error: BaseException | None) -> None:
        with suppress(InvalidStateError):  # the save has failed already
            if error is None:
                handle.captured.set_result(None)
            else:
                handle.captured.set_exception(error)

    def _before_step(self) -> None:
        deferred = self._deferred
        if deferred is None:
            return
        if not deferred.done and self._pending is not None:
            begun = self._registry.opened.clock.monotonic()
            deferred.copy()
            self._pending.task.handle.stages.blocked += self._registry.opened.clock.monotonic() - begun
        self._deferred = None

    def _run(self, task: Task) -> None:
        handle = task.handle
        try:
            branch = self._branch_to_move() if self._ranks.coordinates else None
            outcome = self._writer.run(task, branch)
        except BaseException as error:
            self._agreed = None
            handle.fail(error)
            return
        if outcome.replan:
            self._agreed = None
        handle.notes.extend(outcome.notes)
        for note in outcome.notes:
            log.warning("save of step %d: %s", task.step, note)
        handle.committed.set_result(CheckpointId(outcome.checkpoint))

    def _branch_to_move(self) -> Branch:
        if self._branch is None:
            self._registry.refresh()
            model = ensure_model(self._registry, self._name)
            self._claim(model)
        assert self._branch is not None
        return self._branch

    def _claim(self, model: ModelId) -> None:
        epoch = open_run(self._registry, model, self._branch_name)
        expected = ref_value(self._registry, model, self._branch_name)
        self._branch = Branch(model, self._branch_name, expected, epoch)

    # --- loading -----------------------------------------------------------------------------------

    def load(
        self,
        state: dict[str, Any],
        ref: str = "latest",
        *,
        strict: bool = True,
        require: str = "",
        verify: Literal["digest", "aead"] = "digest",
        casts: bool = False,
        missing_ok: bool = False,
        resume: bool = True,
    ) -> LoadReport | None:
        """Restore a state in place, on every rank.

        Everything is checked on all ranks before anything is written. Tensors are filled where they are; plain values
        replace those in the dict; random states come last.

        Args:
            ref: what to load, as in a selector: a branch or tag, `step:N`, an id; `latest` is this branch's tip.
            strict: refuse a state that has more or less than the checkpoint; else what matches is loaded.
            require: refuse a checkpoint that promises less (see `manifests/exactness.py`).
            verify: `digest` authenticates every chunk and recomputes its digest; `aead` authenticates.
            casts: convert tensors whose dtype differs; each is reported.
            missing_ok: return None if the model or its branch does not exist yet.
            resume: take over the branch from earlier runs, whose commits are void from here on.

        Raises:
            StateMismatch: state and checkpoint do not fit; lists all names; nothing was changed.
            NotFoundError: there is nothing to load.
            IntegrityError: a chunk is damaged; the state is then unusable and its tensors are named.
        """
        self._check_open()
        self._settle()
        self._loads += 1
        options = LoadOptions(ref, strict, require, verify, casts, missing_ok)
        loader = Loader(self._registry, self._ranks, f"load/{self._loads}", self._attempt_seconds)
        report = loader.load(self._name, self._branch_name, state, options)
        if resume and self._ranks.coordinates and self._branch is None:
            self._take_over()
        return report

    def _take_over(self) -> None:
        """Claim the branch; a store that cannot be written is no reason not to read from it."""
        try:
            self._claim(find_model(self._registry, self._name))
        except CairnError as error:
            log.info("the branch was not claimed: %s", error.message)

    def latest(self) -> tuple[CheckpointId, int | None] | None:
        """Id and step of the newest committed checkpoint of the branch; None if there is none."""
        self._check_open()
        self._registry.refresh()
        try:
            model = find_model(self._registry, self._name)
        except CairnError:
            return None
        tip = ref_value(self._registry, model, self._branch_name)
        if tip is None:
            return None
        return tip, open_meta(self._registry, model, self._registry.state.models[model].checkpoints[tip]).step

    # --- the end -----------------------------------------------------------------------------------

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the save under way is committed.

        Raises:
            CairnError: why it failed.
            SaveFailed: it takes longer than `seconds`.
        """
        self._settle(seconds)

    def _settle(self, seconds: float | None = None) -> None:
        """Wait for the save under way and raise its failure, once."""
        if self._pending is not None:
            handle, thread, given_up = self._pending.task.handle, self._pending.thread, self._pending.task.cancelled
            bound = self._attempt_seconds if seconds is None else seconds
            self._before_step()
            thread.join(bound)
            if thread.is_alive():
                raise SaveFailed(
                    f"the save of step {handle.step} is not done after {bound:.0f} s, at stage {handle.stage!r}",
                    hint="look at the storage: a hung file system or network shows like this",
                )
            self._pending = None
            error = handle.failure()
            if error is not None and not (given_up and isinstance(error, Superseded)):
                raise error

    def close(self, seconds: float | None = None) -> None:
        """Wait for the save under way, then let go of everything. Closing again, or in a forked child, does nothing.

        Raises:
            CairnError: why the last save failed.
        """
        if self._closed or self._process != os.getpid():
            return
        self._closed = True
        forget_at_exit(self)
        bound = self._close_seconds if seconds is None else seconds
        try:
            self._settle(bound)
            self._ranks.leave(bound)
        finally:
            self._hooks.remove()
            self._ranks.stop()
            self._arena.release()
            self._plan = None
            if self._owns_store:
                self._registry.close()

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"besides, the last save failed: {failure}")
            log.error("while another error ended the run, the last save failed: %s", failure)

    # --- small things --------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this checkpointer is closed", hint="make a new one")
        if self._process != os.getpid():
            # The threads that carry out its saves exist in the parent only.
            raise UsageError("this checkpointer belongs to the process that forked this one", hint="make a new one")
