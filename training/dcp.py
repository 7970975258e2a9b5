"""The plug-in for `torch.distributed.checkpoint`: a trainer that uses it switches by one line.

    dcp.save(state_dict, storage_writer=cairn.CairnWriter("path/to/store", "llama"), checkpoint_id="step-4000")
    dcp.load(state_dict, storage_reader=cairn.CairnReader("path/to/store", "llama@main"))

Plans, collectives and the choice among replicas are DCP's; errors of one rank reach all through its own gathering.
Tensors go as tensors and plain values as values; any other object is refused, since no pickle goes into a store. What
is pickled to a process of `async_save` says where the store is; keys are found there as they are here.
"""

import dataclasses
import io
import os
import weakref
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from cairn.core.errors import NotFoundError, StateMismatch, UsageError
from cairn.core.ids import CheckpointId
from cairn.core.limits import FRAGMENT_READS_AT_ONCE
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.gone import check_none_gone
from cairn.registry.models import CommitMeta, ensure_model, find_model, history, ref_value
from cairn.registry.names import MAIN, check_model_name, check_ref_name
from cairn.registry.pins import Pin
from cairn.registry.registry import Registry
from cairn.registry.selectors import parse_selector, resolve
from cairn.store.codec import CodecPolicy
from cairn.training.dcp_attempt import Attempt, Told
from cairn.training.dcp_contents import Contents
from cairn.training.dcp_groups import add_groups
from cairn.training.dcp_items import items_of
from cairn.training.dcp_names import step_of
from cairn.training.dcp_place import StorePlace
from cairn.training.dcp_reads import Reads
from cairn.training.gathering import Gathering, Goal, take_fragments

CheckpointName = str | os.PathLike[str] | None


class CairnSavePlanner(DefaultSavePlanner):
    """The default planner, and a check: replicas that other ranks store are digested too, and must be equal.

    Values that ranks share are compared likewise. A difference fails the save; the error names it and the ranks.
    """

    _held: tuple[WriteItem, ...] = ()

    def create_local_plan(self) -> SavePlan:
        """Plan as the default planner does, and remember all that this rank holds."""
        made = super().create_local_plan()
        self._held = tuple(self.plan.items)
        return made

    def replicas(self, plan: SavePlan) -> list[WriteItem]:
        """What this rank holds and, by the final `plan`, others store."""
        own = {item.index for item in plan.items}
        return [item for item in self._held if item.index not in own]


class CairnWriter(StorageWriter):
    """Writes state dicts as checkpoints of a logical model. One save at a time; may be used for many.

    Attributes:
        checkpoint: id of the last checkpoint that was committed, on the coordinator, in the process that writes.
    """

    def __init__(
        self,
        store: str | Path | Registry,
        model: str,
        ref: str = MAIN,
        *,
        step: int | None = None,
        codec: CodecPolicy = CodecPolicy.RAW,
    ) -> None:
        """Say where checkpoints go; the store is opened by the first save.

        Args:
            store: a path, a URL, or an opened store, which then stays open.
            model: name of the logical model; created by the first save.
            ref: the branch that each checkpoint moves; its tip is the parent.
            step: of the checkpoint, unless its `checkpoint_id` names one, as "4000", "step-4000" and
                "out/global_step4000" do. Any other id becomes the commit's message.
        """
        self._model, self._ref = check_model_name(model), check_ref_name(ref)
        self._place, self._step, self._codec = StorePlace(store), step, codec
        self._name: CheckpointName = None
        self._attempt: Attempt | None = None
        self._tip: CheckpointId | None = None
        self.checkpoint: CheckpointId | None = None

    def reset(self, checkpoint_id: CheckpointName = None) -> None:
        """Begin anew; a save under way is given up."""
        self._give_up()
        self._name = checkpoint_id

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Open the store and, on the coordinator, look where the branch is.

        Raises:
            UsageError: without collectives each rank would commit a checkpoint of its own.
        """
        if not kwargs.get("use_collectives", True):
            raise UsageError(
                "without collectives each rank would commit a checkpoint of its own",
                hint="leave out use_collectives=False",
            )
        self._give_up()
        registry = self._place.registry()
        rank = kwargs.get("rank", dist.get_rank() if dist.is_initialized() else 0)
        self._attempt = Attempt(registry, self._codec, rank, is_coordinator)
        if is_coordinator:
            registry.check_writable()
            self._tip = _tip(registry, self._model, self._ref)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Nothing to add."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Nothing to add."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Store what the plan gives this rank; durable, and invisible, when this returns."""
        attempt = self._attempt
        if attempt is None:
            raise UsageError("the writer was not set up", hint="pass it to torch.distributed.checkpoint.save")
        try:
            replicas = planner.replicas(plan) if isinstance(planner, CairnSavePlanner) else ()
            told = attempt.contribute(items_of(plan, planner, replicas), self._step_now)
        except BaseException:
            self._give_up()
            raise
        size = attempt.save.written.counts.bytes_stored
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(MetadataIndex(f"fragment of rank {attempt.rank}"), size, told)])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Join what all ranks have stored, and commit.

        Raises:
            StateMismatch: ranks disagree or leave gaps.
            RefMoved: another writer has moved the branch since the save began.
        """
        attempt, self._attempt = self._attempt, None
        assert attempt is not None and attempt.fragment is not None, "only the coordinator finishes, after writing"
        registry, step = self._place.registry(), self._step_now
        with attempt.settle() as session:
            begun = registry.opened.clock.monotonic()
            gathering = Gathering(registry, session, attempt.save)
            others = []
            for (result,) in results:
                told = result.storage_data
                _check_told(told, registry, step)
                if told.ref is None:
                    gathering.add(attempt.fragment, own=True)
                else:
                    others.append((told.key, told.ref, told.rank))
            for at in range(0, len(others), FRAGMENT_READS_AT_ONCE):
                for fragment in take_fragments(registry.opened, others[at : at + FRAGMENT_READS_AT_ONCE]):
                    gathering.add(fragment, own=False)
            merged = gathering.merge(add_groups)
            attempt.stages.merge = registry.opened.clock.monotonic() - begun
            message = "" if self._name is None or step_of(self._name) is not None else os.fspath(self._name)
            model = ensure_model(registry, self._model)
            goal = Goal(model, self._ref, self._tip, CommitMeta(message, step))
            self.checkpoint = gathering.publish(goal, merged.notes)

    def storage_meta(self) -> StorageMeta | None:
        """The id that the caller gave."""
        return StorageMeta(checkpoint_id=self._name)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Any id will do."""
        return bool(os.fspath(checkpoint_id))

    def close(self) -> None:
        """Give up a save under way, and close the store if it was opened here. The writer can be used again."""
        self._give_up()
        self._place.close()

    def _give_up(self) -> None:
        if self._attempt is not None:
            self._attempt.give_up()
            self._attempt = None

    @property
    def _step_now(self) -> int | None:
        named = step_of(self._name)
        return self._step if named is None else named

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_attempt": None, "_tip": None}


def _tip(registry: Registry, model: str, ref: str) -> CheckpointId | None:
    try:
        return ref_value(registry, find_model(registry, model), ref)
    except NotFoundError:
        return None


def _check_told(told: Told, registry: Registry, step: int | None) -> None:
    if told.store != registry.opened.store:
        raise UsageError(
            f"rank {told.rank} has written into another store than the coordinator",
            hint="give all ranks the same store",
        )
    if told.step != step:
        raise StateMismatch(
            f"rank {told.rank} saves step {told.step} while the coordinator saves step {step}",
            hint="call save with the same checkpoint_id on every rank",
        )


class CairnReader(StorageReader):
    """Reads a checkpoint into state dicts of any layout, whoever wrote it."""

    def __init__(
        self, store: str | Path | Registry, selector: str, *, verify: Literal["digest", "aead"] = "digest"
    ) -> None:
        """Say what to read; the store is opened by the first load.

        Args:
            store: a path, a URL, or an opened store, which then stays open.
            selector: `model`, `model@ref`, `model@step:4000`, `model@<id prefix>`. A `checkpoint_id` of `load` then
                means the newest checkpoint of that step, or with that message, in the history of what is selected.
            verify: `digest` authenticates every chunk and recomputes its digest; `aead` authenticates.
        """
        self._selector, self._place, self._verify = parse_selector(selector), StorePlace(store), verify
        self._name: CheckpointName = None
        self._contents: Contents | None = None
        self._unpin: weakref.finalize[..., Any] | None = None

    def reset(self, checkpoint_id: CheckpointName = None) -> None:
        """Begin anew."""
        self._name = checkpoint_id
        self._let_go()

    def read_metadata(self, *args: Any, **options: Any) -> Metadata:
        """What the checkpoint holds.

        Raises:
            NotFoundError: there is no such checkpoint.
            RefusedError: two of its entries have one flat name.
        """
        # Not called `kwargs`: by that name DCP knows readers that have metadata for each rank.
        registry = self._place.registry()
        registry.refresh()
        model, checkpoint = resolve(registry, f"{self._selector.model}@{self._selector.revision}")
        if self._name is not None:
            step, name = step_of(self._name), os.fspath(self._name)

            def fits(meta: CommitMeta) -> bool:
                return meta.message == name if step is None else meta.step == step

            fitting = [one for one in history(registry, model, checkpoint) if fits(one.meta)]
            if not fitting:
                check_none_gone(registry, model, checkpoint, fits)
                raise NotFoundError(
                    f"no checkpoint {name!r} in the history of {self._selector.model}@{self._selector.revision}",
                    hint="'cairn log MODEL' shows steps and messages",
                )
            checkpoint = fitting[0].id
        self._let_go()
        self._unpin = weakref.finalize(self, Pin(registry, model, checkpoint).release)
        self._contents = Contents(CheckpointManifest(registry, model, checkpoint))
        return self._contents.metadata()

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to set up."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Nothing to add."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Have all ranks read what the coordinator has found: the branch may have moved between their looks."""
        assert self._contents is not None, "metadata comes first"
        checkpoint = bytes(self._contents.manifest.id)
        return [dataclasses.replace(plan, storage_data=checkpoint) for plan in plans]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill the plan's tensors in place, then hand over its values.

        Raises:
            IntegrityError: a chunk is damaged; tensors are then filled in part.
        """
        registry = self._place.registry()
        reads = Reads(self._agreed(plan, registry), plan, planner)
        reads.fill(registry, recompute=self._verify != "aead")
        for item, value in reads.values():
            buffer = io.BytesIO()
            torch.save(value, buffer)  # in memory, since planners unpickle what they are given
            buffer.seek(0)
            planner.load_bytes(item, buffer)
        if self._unpin is not None:
            self._unpin()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Any id will do."""
        return bool(os.fspath(checkpoint_id))

    def close(self) -> None:
        """Close the store if it was opened here. The reader can be used again."""
        self._let_go()
        self._place.close()

    def _let_go(self) -> None:
        self._contents = None
        if self._unpin is not None:
            self._unpin()
            self._unpin = None

    def _agreed(self, plan: LoadPlan, registry: Registry) -> Contents:
        """What the coordinator has found, if it says so; the plan was made for what this rank has found."""
        contents = self._contents
        assert contents is not None, "metadata comes first"
        if plan.storage_data in (None, contents.manifest.id):
            return contents
        registry.refresh()
        manifest = CheckpointManifest(registry, contents.manifest.model, CheckpointId(plan.storage_data))
        return Contents(manifest)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_contents": None, "_unpin": None}
