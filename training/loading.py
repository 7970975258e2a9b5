"""Loading on all ranks: resolve -> match -> vote -> read in place -> vote -> put plain values in place.

Nothing is written into a target before every rank has said that everything fits. A read that fails later leaves
tensors unusable; that is raised on every rank.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import torch
from blake3 import blake3

from cairn.core.errors import IntegrityError, NotAllowed, NotFoundError, SaveFailed, StateMismatch
from cairn.core.heap import collection_paused
from cairn.core.ids import CheckpointId, Digest, ModelId
from cairn.core.limits import LISTED_NAMES_MAX, READ_BYTES_TARGET
from cairn.core.shown import Shown
from cairn.loader.boxes import BoxPlan, StoredTensor, Target
from cairn.loader.execute import execute, reading_threads
from cairn.loader.placement import as_array
from cairn.loader.plan import ReadPlan, plan_reads
from cairn.manifests.exactness import check_exact_enough
from cairn.manifests.schema import TensorEntry
from cairn.manifests.tiling import Box
from cairn.manifests.values import decode_value
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.names import LATEST
from cairn.registry.pins import pinned
from cairn.registry.registry import Registry
from cairn.registry.selectors import resolve
from cairn.registry.within import Pages, pages_within, stored_within
from cairn.training.leaves import Binding, Read, StoredScope
from cairn.training.placements import Part
from cairn.training.plaindata import torch_dtype
from cairn.training.ranks import COORDINATOR, Ranks
from cairn.training.tree import parts_of
from cairn.training.windows import Windows

# A worker holds the ranges of one batch and the plaintext of one chunk.
_WORKER_BYTES = 2 * READ_BYTES_TARGET
# Of 64 regions each, and so of some 20 kB of objects: 5 MB.
_PAGES_AT_ONCE = 256


class LoadReport(Shown, frozen=True):
    """What a load did on this rank.

    Args:
        tensors: number of tensors filled; `bytes_wanted` of them on this rank, from `bytes_read` of storage.
        seconds: by stage: resolve, plan, read, finish.
        casts, skipped: by name: converted from the recorded dtype; not loaded since state or checkpoint lacks them.
        not_asked: parts of the checkpoint that the state does not have.
        notes: what else is worth a word.
    """

    checkpoint: CheckpointId
    step: int | None
    tensors: int
    bytes_wanted: int
    bytes_read: int
    requests: int
    seconds: dict[str, float]
    casts: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    not_asked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class LoadOptions(msgspec.Struct, frozen=True):
    """As in `Checkpointer.load`."""

    ref: str = LATEST
    strict: bool = True
    require: str = ""
    verify: str = "digest"
    casts: bool = False
    missing_ok: bool = False
    scopes: dict[str, str] = {}


class _Vote(msgspec.Struct, frozen=True):
    """What one rank found: what does not fit, and a name for the list of what it does not take."""

    problems: tuple[str, ...]
    missing: tuple[str, ...]
    extra: bytes


class _Verdict(msgspec.Struct, frozen=True):
    """What the coordinator made of all votes."""

    problems: tuple[str, ...]
    missing: tuple[str, ...]
    extra: tuple[str, ...]


@dataclass(slots=True)
class _Prepared:
    """A plan for this rank: what is read in place, and what goes through slabs of host memory."""

    windows: Windows
    plan: BoxPlan = field(default_factory=BoxPlan)
    reads: ReadPlan = field(default_factory=lambda: ReadPlan(()))
    casts: list[str] = field(default_factory=list)

    def counts(self) -> tuple[int, int, int]:
        """Bytes wanted, bytes read, requests."""
        reads = [self.reads, *self.windows.reads]
        wanted = self.plan.bytes_wanted + self.windows.bytes_wanted
        return wanted, sum(one.bytes_fetched for one in reads), sum(one.requests for one in reads)


class Loader:
    """One load."""

    def __init__(self, registry: Registry, ranks: Ranks, task: str, seconds: float) -> None:
        self._registry, self._ranks, self._task, self._limit = registry, ranks, task, seconds
        self._clock = registry.opened.clock
        self._seconds: dict[str, float] = {}

    def load(self, model: str, branch: str, state: dict[str, Any], options: LoadOptions) -> LoadReport | None:
        """Load; see `Checkpointer.load`."""
        try:
            return self._load(model, branch, state, options)
        except BaseException as error:
            self._ranks.fail(self._task, error)
            raise

    def _load(self, model: str, branch: str, state: dict[str, Any], options: LoadOptions) -> LoadReport | None:
        begun = self._clock.monotonic()
        with ExitStack() as held:
            found = self._resolve(model, branch, options, held)
            return None if found is None else self._load_found(found, state, options, begun)

    def _load_found(
        self, found: tuple[ModelId, CheckpointId], state: dict[str, Any], options: LoadOptions, begun: float
    ) -> LoadReport:
        manifest = CheckpointManifest(self._registry, *found, readable_only=True)
        check_exact_enough(manifest.body.exactness, options.require, manifest.what)
        begun = self._lap("resolve", begun)
        parts, binding = parts_of(state), Binding()
        aliases = {name: options.scopes.get(name, name) for name in state}
        with collection_paused():
            stored, not_asked = stored_scopes(manifest, set(aliases.values()))
            for (scope, path), part in parts.items():
                below = stored.get(aliases[scope], StoredScope())
                binding.add(part.bind(below.below(path) if path else below))
        hidden = [component.name.lower() for component in manifest.hidden]
        try:
            verdict = self._vote(manifest, binding, options)
        except StateMismatch as error:
            if not hidden:
                raise
            raise NotAllowed(
                f"{' and '.join(hidden)} of {manifest.what} were not granted to you, and {error.message}",
                hint=f"ask an owner to run: cairn grant MODEL IDENTITY --read {','.join(hidden)}",
            ) from error
        with collection_paused(), manifest.explained():
            prepared = self._prepare(manifest, binding.reads)
        begun = self._lap("plan", begun)
        self._read(prepared, options)
        begun = self._lap("read", begun)
        notes = [*binding.notes, *(f"not granted to you: {name}" for name in hidden)]
        for finish in (*binding.finish, *binding.last):
            notes += finish()
        self._agree_on_success()
        self._lap("finish", begun)
        return LoadReport(
            found[1], manifest.body.step, len(binding.reads), *prepared.counts(), self._seconds,
            tuple(prepared.casts), (*verdict.missing, *verdict.extra), tuple(not_asked), tuple(notes),
        )  # fmt: skip

    def _agree_on_success(self) -> None:
        """Return once all ranks have all of it; a late failure of one is raised on every rank."""
        ranks, task = self._ranks, self._task
        ranks.tell(task, "loaded", b"")
        if ranks.coordinates:
            ranks.wait(task, "loaded", range(ranks.count), self._limit)
            ranks.tell(task, "complete", b"")
        ranks.wait(task, "complete", [COORDINATOR], self._limit)

    def _lap(self, stage: str, since: float) -> float:
        now = self._clock.monotonic()
        self._seconds[stage] = now - since
        return now

    # --- which checkpoint ----------------------------------------------------------------------------

    def _resolve(
        self, model: str, branch: str, options: LoadOptions, held: ExitStack
    ) -> tuple[ModelId, CheckpointId] | None:
        """One rank resolves, all load the same.

        Args:
            held: gets that rank's pin, which protects what all read until all are done; it is there before they look.
        """
        if self._ranks.coordinates:
            found = self._resolved(model, branch, options)
            if found is not None:
                held.enter_context(pinned(self._registry, *found))
            self._ranks.tell(self._task, "ref", msgspec.msgpack.encode(found))
            return found
        told = self._ranks.wait(self._task, "ref", [COORDINATOR], self._limit)[COORDINATOR]
        pair = msgspec.msgpack.decode(told, type=tuple[bytes, bytes] | None)
        self._registry.refresh()
        return None if pair is None else (ModelId(pair[0]), CheckpointId(pair[1]))

    def _resolved(self, model: str, branch: str, options: LoadOptions) -> tuple[ModelId, CheckpointId] | None:
        self._registry.refresh()
        try:
            return resolve(self._registry, f"{model}@{branch if options.ref == LATEST else options.ref}")
        except NotFoundError:
            if options.missing_ok and options.ref == LATEST:
                return None
            raise

    # --- whether it fits -----------------------------------------------------------------------------

    def _vote(self, manifest: CheckpointManifest, binding: Binding, options: LoadOptions) -> _Verdict:
        ranks, task = self._ranks, self._task
        problems = [*binding.problems, *_misfits(binding.reads, options.casts)]
        extra = msgspec.msgpack.encode(sorted(binding.extra))
        digest = blake3(extra).digest()
        ranks.share(task, digest, extra)
        ranks.tell(task, "vote", msgspec.msgpack.encode(_Vote(tuple(problems), tuple(binding.missing), digest)))
        if ranks.coordinates:
            votes = ranks.wait(task, "vote", range(ranks.count), self._limit)
            ranks.tell(task, "verdict", msgspec.msgpack.encode(self._verdict(votes)))
        told = ranks.wait(task, "verdict", [COORDINATOR], self._limit)[COORDINATOR]
        verdict = msgspec.msgpack.decode(told, type=_Verdict)
        lines = list(verdict.problems)
        if options.strict:
            lines += _listed("the checkpoint lacks", verdict.missing)
            lines += _listed("the state lacks", verdict.extra)
        if lines:
            absent = [component.name.lower() for component in manifest.absent()] if verdict.missing else []
            lines += [f"of the checkpoint, {', '.join(absent)} was not pulled"] if absent else []
            raise StateMismatch(
                f"state and {manifest.what} do not fit; nothing was changed:\n  " + "\n  ".join(lines),
                hint="'cairn pull MODEL@REF' brings the rest" if absent else
                "mend the state, or pass strict=False to skip what has no partner and casts=True to convert",
            )  # fmt: skip
        return verdict

    def _verdict(self, votes: dict[int, bytes]) -> _Verdict:
        """All that does not fit anywhere; what no rank takes is too much."""
        opened = [msgspec.msgpack.decode(votes[rank], type=_Vote) for rank in range(self._ranks.count)]
        left: set[str] | None = None
        for digest in {vote.extra for vote in opened}:
            names = set(msgspec.msgpack.decode(self._ranks.shared(self._task, digest), type=list[str]))
            left = names if left is None else left & names
        return _Verdict(
            tuple(dict.fromkeys(problem for vote in opened for problem in vote.problems)),
            tuple(dict.fromkeys(name for vote in opened for name in vote.missing)),
            tuple(sorted(left or ())),
        )

    # --- reading -------------------------------------------------------------------------------------

    def _prepare(self, manifest: CheckpointManifest, reads: Sequence[Read]) -> _Prepared:
        prepared = _Prepared(Windows())
        for read, boxes, pages in _with_pages(manifest, reads):
            leaf, dtype = read.leaf, torch_dtype(read.entry.dtype, f"tensor {read.entry.key}")
            if leaf.dtype != read.entry.dtype:
                prepared.casts.append(f"{leaf.key}: {read.entry.dtype} to {leaf.dtype}")
            if not boxes:
                continue
            stored = stored_tensor(manifest, read.entry, boxes, pages)
            for holding in leaf.holdings:
                local = holding.local.detach()
                if _takes_bytes(local, dtype):
                    array = as_array(local)
                    prepared.plan.add(stored, [Target(part.box, array[_within(part)]) for part in holding.parts])
                else:
                    for part in holding.parts:
                        prepared.windows.add(stored, dtype, part.box, local[_within(part)])
        index, keys = manifest.chunks.index, self._registry.opened.keys.chunk
        prepared.reads = plan_reads(prepared.plan.groups(), index, keys)
        prepared.windows.plan(index, keys)
        return prepared

    def _read(self, prepared: _Prepared, options: LoadOptions) -> None:
        ranks, task, plan = self._ranks, self._task, prepared.plan
        chunks = self._registry.chunks()
        threads = reading_threads(chunks, _WORKER_BYTES)
        recompute = options.verify != "aead"
        try:
            plan.copy_inline()
            execute(prepared.reads, chunks, plan.deliver, threads, plan.place, recompute)
            prepared.windows.fill(chunks, threads, recompute)
        except IntegrityError as error:
            raise IntegrityError(
                f"the state is now unusable, since its tensors are filled in part: {error.message}", hint=error.hint
            ) from error
        if ranks.count > 1:
            ranks.tell(task, "read", b"")
            if ranks.coordinates:
                ranks.wait(task, "read", range(ranks.count), self._limit)
                ranks.tell(task, "all-read", b"")
            try:
                ranks.wait(task, "all-read", [COORDINATOR], self._limit)
            except SaveFailed as error:
                error.message = f"the state is now unusable, since not all ranks could fill theirs: {error.message}"
                raise


def stored_scopes(manifest: CheckpointManifest, wanted: set[str]) -> tuple[dict[str, StoredScope], list[str]]:
    """Entries of a checkpoint by scope, and the names of scopes that are not wanted."""
    scopes: dict[str, StoredScope] = {}
    others: dict[str, None] = {}
    for entry in manifest.entries():
        if entry.key.scope not in wanted:
            others[entry.key.scope] = None
        elif isinstance(entry, TensorEntry):
            scopes.setdefault(entry.key.scope, StoredScope()).tensors[entry.key.path] = entry
        else:
            read = partial(_value, manifest, entry)
            scopes.setdefault(entry.key.scope, StoredScope()).values[entry.key.path] = read
    return scopes, sorted(others)


def _value(manifest: CheckpointManifest, entry: Any) -> Any:
    return decode_value(manifest.value_bytes(entry), f"value {entry.key} of {manifest.what}")


def stored_tensor(
    manifest: CheckpointManifest, entry: TensorEntry, boxes: Sequence[Box], pages: Pages | None = None
) -> StoredTensor:
    """Where an entry's bytes within some boxes are; `pages` are those of `pages_within`, if they have been read."""
    return StoredTensor.of(entry, *stored_within(manifest, entry, boxes, pages))


def _with_pages(manifest: CheckpointManifest, reads: Sequence[Read]) -> Iterator[tuple[Read, Sequence[Box], Pages]]:
    """Each read with the boxes that it wants and the pages that tell where they are, some hundred pages at a time."""
    waiting: list[tuple[Read, Sequence[Box]]] = []
    needed: list[Digest] = []
    for number, read in enumerate(reads, 1):
        boxes = _boxes(read)
        waiting.append((read, boxes))
        needed += pages_within(manifest, read.entry, boxes) if boxes else ()
        if len(needed) >= _PAGES_AT_ONCE or number == len(reads):
            pages = manifest.fetch(needed)
            yield from ((*one, pages) for one in waiting)
            waiting, needed = [], []


def _boxes(read: Read) -> list[Box]:
    return [part.box for holding in read.leaf.holdings for part in holding.parts]


def _takes_bytes(local: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether content can be put into a tensor's memory as it is."""
    return local.is_cpu and local.dtype is dtype and not local.is_conj() and not local.is_neg()


def _within(part: Part) -> tuple[Any, ...]:
    """The index of a part in its local tensor."""
    return (*(slice(o, o + n) for o, n in zip(part.local.offsets, part.local.lengths, strict=True)), ...)


def _misfits(reads: Iterable[Read], casts: bool) -> Iterable[str]:
    for read in reads:
        leaf, entry = read.leaf, read.entry
        if leaf.shape != entry.shape:
            yield f"{leaf.key} has shape {list(leaf.shape)}, in the checkpoint {list(entry.shape)}"
        elif leaf.dtype != entry.dtype and not casts:
            yield f"{leaf.key} is {leaf.dtype}, in the checkpoint {entry.dtype}"


def _listed(what: str, names: tuple[str, ...]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - LISTED_NAMES_MAX} more" if len(names) > LISTED_NAMES_MAX else ""
    return [f"{what} {', '.join(names[:LISTED_NAMES_MAX])}{more}"]
