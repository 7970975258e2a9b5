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

import contextlib
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from cairn.core.clock import ThreadClock
from cairn.core.errors import CairnError, NotAllowed, RefusedError, SaveFailed, Superseded, UsageError
from cairn.core.ids import CheckpointId, ModelId
from cairn.core.limits import ATTEMPT_SECONDS, CLOSE_SECONDS, RANK_SILENCE_SECONDS
from cairn.manifests.exactness import check_level
from cairn.registry.metrics import checked_metrics, checked_step
from cairn.registry.models import CommitMeta, ensure_model, find_model, open_meta, ref_value
from cairn.registry.names import MAIN, check_model_name, check_ref_name
from cairn.registry.registry import Registry
from cairn.registry.retention import Retention
from cairn.registry.runs import open_run
from cairn.registry.stores import open_store
from cairn.store.codec import CodecPolicy
from cairn.training.atexit import close_at_exit, forget_at_exit
from cairn.training.followers import Followers
from cairn.training.handle import SaveHandle, is_local
from cairn.training.hostmemory import Arena
from cairn.training.loading import Loader, LoadOptions, LoadReport
from cairn.training.meeting import meet
from cairn.training.ranks import Ranks
from cairn.training.rendezvous import JobStore, Rendezvous
from cairn.training.snapshots import Snapshots
from cairn.training.writing import Branch, Pending, Task, Writer

log = logging.getLogger("cairn.training")


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
        retention: Retention | None = None,
        copies: str | Sequence[str] = (),
        start_over: bool = False,
        process_group: Any = None,
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
            retention: which checkpoints of the branch stay; after each commit others are deleted, in the background.
                'cairn gc apply' frees their space; until then they can be restored.
            copies: other stores that get each commit, by names of remotes or by addresses; in the background, from rank
                0, one after the other: of commits that come faster the newest. `SaveHandle.durable` tells when.
            start_over: let a run that has loaded nothing save an earlier step than the branch's newest one.
            process_group: the ranks that save together; by default all of the job.
            rendezvous: how ranks meet; by default through the store of torch.distributed's job.
            attempt_seconds: how long a save or load may take before it fails.
            close_seconds: how long `close`, and the end of the process, wait for the save under way.
            silence_seconds: after how long without a sign of life a rank is taken for lost.

        Raises:
            NotAStore, NotAllowed: see `open_store`.
            NotFoundError: no remote has the name of a copy.
        """
        check_model_name(model)
        check_ref_name(branch)
        _check_choice("capture", capture, ("eager", "overlap"))
        _check_choice("on_busy", on_busy, ("wait", "skip", "supersede"))
        self._name, self._branch_name, self._mode, self._on_busy = model, branch, capture, on_busy
        self._registry = store if isinstance(store, Registry) else open_store(store)
        self._owns_store = not isinstance(store, Registry)
        self._codec, self._exactness = codec, check_level(exactness)
        self._check_every = check_replicas_every
        self._attempt_seconds, self._close_seconds = attempt_seconds, close_seconds
        opened = self._registry.opened
        meeting = f"{opened.store.hex()}/{model}/{branch}"
        self._ranks = Ranks(rendezvous or JobStore.of_job(meeting, process_group), opened.clock, silence_seconds)
        if on_busy != "wait" and self._ranks.count > 1:
            raise UsageError(
                f"on_busy={on_busy!r} would let ranks drop different saves", hint="use 'wait' with several ranks"
            )
        self._ranks.start()
        try:
            names = (copies,) if isinstance(copies, str) else copies
            rules, names = (retention, names) if self._ranks.coordinates else (None, ())
            self._followers = Followers(opened, model, branch, rules, names)
            key = meet(self._ranks, opened, attempt_seconds)
        except BaseException:
            self._ranks.stop()  # a rank that is not of the job gives it no signs of life
            raise
        self._writer = Writer(self._registry, self._ranks, key, codec, attempt_seconds)
        self._snapshots = Snapshots(
            self._ranks, opened.clock, Arena(host_bytes_max), capture, attempt_seconds, dict(provenance or {})
        )
        self._branch: Branch | None = None
        self._may_go_back = start_over
        self._saves, self._loads = 0, 0
        self._pending: Pending | None = None
        self._closed = False
        self._process = os.getpid()
        close_at_exit(self)

    # --- saving ------------------------------------------------------------------------------------

    def save(
        self,
        step: int,
        state: dict[str, Any],
        *,
        blocking: bool = False,
        message: str = "",
        metrics: Mapping[str, Any] | None = None,
    ) -> SaveHandle:
        """Begin to save; returns when the state is captured (`eager`), or what cannot be deferred is (`overlap`).

        Args:
            state: modules, optimizers, stateful objects, tensors and plain data under string keys.
            blocking: return when the checkpoint is committed.
            metrics: numbers by name that the checkpoint is told by, such as a loss; the coordinator's count.

        Raises:
            SaveFailed, RankLost, ...: an earlier save failed in the background, or this one did; names the step.
            RefusedError, in the background: the branch's newest step is a later one, and nothing was loaded.
            RefusedError: the state cannot be saved; nothing was begun.
        """
        self._check_open()
        step = checked_step(step)
        meta = CommitMeta(message, step, metrics=checked_metrics(metrics or {}))
        started = self._registry.opened.clock.monotonic()
        if self._pending is not None and self._pending.thread.is_alive():
            if self._on_busy == "skip":
                return SaveHandle(step, is_local(self._registry.opened.backend.url), skipped=True)
            self._pending.task.cancelled = self._on_busy == "supersede"
        self._settle()
        local = is_local(self._registry.opened.backend.url)
        handle = SaveHandle(step, local, notes=self._followers.told(), copies=self._followers.copies.of_save())
        self._saves += 1
        try:
            task = self._captured(step, state, meta, handle, started, blocking)
        except BaseException as error:
            self._ranks.fail(f"save/{self._saves}", error)
            self._snapshots.agree_anew()
            handle.fail(error)
            raise
        thread = threading.Thread(target=self._run, args=(task,), name="cairn-save", daemon=True)
        self._pending = Pending(task, thread)
        thread.start()
        handle.stages.blocked += self._registry.opened.clock.monotonic() - started
        if blocking:
            self.wait()
        return handle

    def _captured(
        self, step: int, state: dict[str, Any], meta: CommitMeta, handle: SaveHandle, started: float, blocking: bool
    ) -> Task:
        number = self._saves
        check = self._check_every > 0 and number % self._check_every == 1 % self._check_every
        taken = self._snapshots.take(state, f"save/{number}", handle, check and self._ranks.count > 1)
        leaves, trainer = taken.leaves, None if blocking else ThreadClock()
        return Task(
            number, step, meta, leaves.tensors, taken.values, taken.capture, handle, started,
            f"rank={self._ranks.rank}", self._exactness, taken.replan, trainer, leaves.notes,
        )  # fmt: skip

    def _run(self, task: Task) -> None:
        handle = task.handle
        try:
            branch = self._branch_to_move(task.step) if self._ranks.coordinates else None
            outcome = self._writer.run(task, branch)
        except BaseException as error:
            self._ranks.fail(task.name, error)
            self._snapshots.agree_anew()
            handle.fail(error)
            return
        if outcome.replan:
            self._snapshots.agree_anew()
        handle.notes.extend(outcome.notes)
        for note in outcome.notes:
            log.warning("save of step %d: %s", task.step, note)
        handle.committed.set_result(CheckpointId(outcome.checkpoint))
        self._followers.begin(handle)

    def _branch_to_move(self, step: int) -> Branch:
        if self._branch is None:
            self._registry.refresh()
            model = ensure_model(self._registry, self._name)
            if not self._may_go_back:
                self._check_goes_on(model, step)
            self._claim(model)
        assert self._branch is not None
        return self._branch

    def _check_goes_on(self, model: ModelId, step: int) -> None:
        """Raise if a run that began from nothing would hide a later state: most likely it forgot to load."""
        newest = self._newest(model)
        if newest is not None and newest[1] is not None and newest[1] > step:
            raise RefusedError(
                f"branch {self._branch_name!r} of {self._name!r} is at step {newest[1]}, and this run, which has "
                f"loaded nothing, saves step {step}; nothing was saved",
                hint="call load(state, missing_ok=True) first, name another branch, or pass start_over=True",
            )

    def _newest(self, model: ModelId) -> tuple[CheckpointId, int | None] | None:
        tip = ref_value(self._registry, model, self._branch_name)
        if tip is None:
            return None
        step = None
        with contextlib.suppress(NotAllowed):  # who may write only cannot tell
            step = open_meta(self._registry, model, self._registry.state.live_model(model).checkpoints[tip]).step
        return tip, step

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
        scopes: Mapping[str, str] | None = None,
        share_reads: bool | None = None,
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
            scopes: for keys of the state, where they stand in the checkpoint, if elsewhere: `{"model": ""}` finds the
                tensors of a safetensors file that was committed alone in its folder.
            resume: take over the branch from earlier runs, whose commits are void from here on.
            share_reads: whether ranks of one host fetch once what several of them need, and hand it to each other
                through up to 64 MiB of memory a rank; None where the store is in no file system, whose cache does it.

        Raises:
            StateMismatch: state and checkpoint do not fit; lists all names; nothing was changed.
            NotFoundError: there is nothing to load.
            IntegrityError: a chunk is damaged; the state is then unusable and its tensors are named.
        """
        self._check_open()
        _check_choice("verify", verify, ("digest", "aead"))
        self._settle()
        self._loads += 1
        options = LoadOptions(ref, strict, require, verify, casts, missing_ok, dict(scopes or {}), share_reads)
        loader = Loader(self._registry, self._ranks, f"load/{self._loads}", self._attempt_seconds)
        report = loader.load(self._name, self._branch_name, state, options)
        self._may_go_back = self._may_go_back or report is not None
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
        return self._newest(model)

    # --- the end -----------------------------------------------------------------------------------

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the save under way is committed.

        Raises:
            CairnError: why it failed.
            SaveFailed: it takes longer than `seconds`.
        """
        self._followers.told()
        self._settle(seconds)

    def _settle(self, seconds: float | None = None) -> None:
        """Wait for the save under way and raise its failure, once."""
        if self._pending is not None:
            task, thread = self._pending
            handle = task.handle
            # Longer than any rank waits for another, so that the cause is known by then.
            bound = 2 * (self._attempt_seconds + RANK_SILENCE_SECONDS) if seconds is None else seconds
            self._snapshots.finish()
            thread.join(bound)
            if thread.is_alive():
                raise SaveFailed(
                    f"the save of step {handle.step} is not done after {bound:.0f} s, at stage {handle.stage!r}",
                    hint="look at the storage: a hung file system or network shows like this",
                )
            self._pending = None
            error = handle.failure()
            if error is not None and not (task.cancelled and isinstance(error, Superseded)):
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
            self._snapshots.release()
            self._ranks.stop()
            self._followers.finish(bound)
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


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{name}={value!r} is none of {', '.join(map(repr, choices))}")
