"""Loading on all ranks: resolve -> match -> vote -> read in place -> vote -> put plain values in place.

Nothing is written into a target before every rank has said that everything fits. A read that fails later leaves
tensors unusable; that is raised on every rank.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import msgspec
from blake3 import blake3

from cairn.core.errors import NotAllowed, NotFoundError, SaveFailed, StateMismatch
from cairn.core.heap import collection_paused
from cairn.core.ids import CheckpointId, ModelId
from cairn.core.limits import LISTED_NAMES_MAX
from cairn.core.shown import Shown
from cairn.loader.sharing import encode_wants
from cairn.manifests.exactness import check_exact_enough
from cairn.manifests.schema import TensorEntry
from cairn.manifests.values import decode_value
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.names import LATEST
from cairn.registry.pins import pinned
from cairn.registry.registry import Registry
from cairn.registry.selectors import resolve
from cairn.store.backends.contract import waits
from cairn.training.filling import Filling
from cairn.training.hostreads import agree, first_of_hosts, host_of_process, members_of
from cairn.training.leaves import Binding, Read, StoredScope
from cairn.training.ranks import COORDINATOR, Ranks
from cairn.training.tree import parts_of


class LoadReport(Shown, frozen=True):
    """What a load did on this rank.

    Args:
        tensors: number of tensors filled; `bytes_wanted` of them on this rank, from `bytes_read` of storage and
            `bytes_shared` that other ranks of the host had read.
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
    bytes_shared: int = 0


class LoadOptions(msgspec.Struct, frozen=True):
    """As in `Checkpointer.load`."""

    ref: str = LATEST
    strict: bool = True
    require: str = ""
    verify: str = "digest"
    casts: bool = False
    missing_ok: bool = False
    scopes: dict[str, str] = {}
    share_reads: bool | None = None


class _Vote(msgspec.Struct, frozen=True):
    """What one rank found: what does not fit, a name for the list of what it does not take, with whom it would share.

    Args:
        host: of `host_of_process`; empty if this rank reads alone.
    """

    problems: tuple[str, ...]
    missing: tuple[str, ...]
    extra: bytes
    host: bytes = b""


class _Verdict(msgspec.Struct, frozen=True):
    """What the coordinator made of all votes.

    Args:
        hosts: of `first_of_hosts`.
    """

    problems: tuple[str, ...]
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    hosts: tuple[int, ...] = ()


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
            filling = Filling.planned(manifest, binding.reads)
        self._share(filling, verdict.hosts)
        begun = self._lap("plan", begun)
        self._read(filling, options)
        begun = self._lap("read", begun)
        notes = [*binding.notes, *(f"not granted to you: {name}" for name in hidden)]
        for finish in (*binding.finish, *binding.last):
            notes += finish()
        self._agree_on_success()
        self._lap("finish", begun)
        return LoadReport(
            found[1], manifest.body.step, len(binding.reads), seconds=self._seconds, casts=tuple(filling.casts),
            skipped=(*verdict.missing, *verdict.extra), not_asked=tuple(not_asked), notes=tuple(notes),
            **filling.counts(),
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
        vote = _Vote(tuple(problems), tuple(binding.missing), digest, self._host(options))
        ranks.tell(task, "vote", msgspec.msgpack.encode(vote))
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
            first_of_hosts([vote.host for vote in opened]),
        )

    # --- reading -------------------------------------------------------------------------------------

    def _host(self, options: LoadOptions) -> bytes:
        """With whom this rank would share reads: a local file system's page cache does that without any help."""
        share = waits(self._registry.opened.backend) if options.share_reads is None else options.share_reads
        return host_of_process() if share and self._ranks.count > 1 else b""

    def _share(self, filling: Filling, hosts: Sequence[int]) -> None:
        """Agree with the other ranks of this host who fetches what, if there are any."""
        members = members_of(hosts, self._ranks.rank)
        if len(members) > 1:
            ring = agree(self._ranks, self._task, members, encode_wants(filling.all_reads), self._limit)
            if ring is not None:
                check = partial(self._ranks.look, self._task, members, self._clock.monotonic())
                filling.share(ring, self._registry.chunks(), self._clock, check)

    def _read(self, filling: Filling, options: LoadOptions) -> None:
        ranks, task = self._ranks, self._task
        try:
            filling.fill(self._registry.chunks(), options.verify != "aead")
            if ranks.count > 1:
                ranks.tell(task, "read", b"")
                if ranks.coordinates:
                    ranks.wait(task, "read", range(ranks.count), self._limit)
                    ranks.tell(task, "all-read", b"")
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
