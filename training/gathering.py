"""All ranks' fragments on their way to one checkpoint, however the ranks meet.

A rank makes its fragment and leaves it in the store, sealed under a key that only the ranks share. The coordinator
takes fragments up one by one, joins them, writes the manifest's pages, and publishes.
"""

import contextlib
import platform
from collections.abc import Callable, Iterable, Sequence

import msgspec
from blake3 import blake3

from cairn.core.canonical import encode
from cairn.core.errors import CairnError, IntegrityError
from cairn.core.ids import OBJECT_RANDOM_BYTES, CheckpointId, ModelId
from cairn.core.pool import Pool
from cairn.manifests.relations import CONTINUE
from cairn.manifests.schema import ComponentRoot, Parent
from cairn.registry.entries import ObjectRef
from cairn.registry.envelope import Envelope, RankReport, Stages
from cairn.registry.indexing import read_object
from cairn.registry.manifestwriter import ManifestWriter
from cairn.registry.models import CommitMeta
from cairn.registry.opened import OpenStore
from cairn.registry.publish import Draft, publish
from cairn.registry.registry import Registry
from cairn.registry.session import Session
from cairn.store.chunkstore import ChunkSave
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.objects import ObjectKind, open_object, seal_object
from cairn.store.index import check_piece, encode_piece
from cairn.store.written import WriteCounts, Written
from cairn.training.fragment import ContributedValue, Contribution, Fragment
from cairn.training.merge import Merged, Merger

_KIND = "fragment"
_decoder = msgspec.msgpack.Decoder(Fragment)


class Goal(msgspec.Struct, frozen=True):
    """What a save becomes: a checkpoint that moves `branch` from `expected`, which it stems from by `relation`."""

    model: ModelId
    branch: str
    expected: CheckpointId | None
    meta: CommitMeta
    relation: str = CONTINUE
    exactness: str = ""
    run_epoch: int | None = None


# --- a rank's part ----------------------------------------------------------------------------------


def make_fragment(
    rank: int,
    step: int,
    session: Session,
    tensors: Contribution,
    values: Sequence[ContributedValue],
    written: Written,
    stages: Stages,
    *,
    stays: bool,
    replan: bool = False,
    notes: Sequence[str] = (),
) -> Fragment:
    """What a rank has to say once its packs are durable.

    Args:
        stages: gets the writers' times, and stays the caller's to fill up.
        stays: the fragment does not leave this process, which knows its own packs.
    """
    seconds = written.seconds
    stages.digest, stages.encode, stages.seal, stages.store = (
        seconds.digest, seconds.encode, seconds.seal, seconds.store,
    )  # fmt: skip
    epoch, hit_position = session.settle()
    pieces = b"" if stays else encode_piece(written.packs, written.entries)
    return Fragment(
        rank, step, session.id, epoch, hit_position, tensors, tuple(values), pieces,
        tuple(sorted(written.relied)), written.counts, stages, platform.node(), replan, tuple(notes),
    )  # fmt: skip


def leave_fragment(opened: OpenStore, key: bytes, fragment: Fragment) -> ObjectRef:
    """Put a fragment into the store, sealed under `key` (32 bytes); durable when this returns."""
    random = opened.entropy.token(OBJECT_RANDOM_BYTES)
    stored = seal_object(key, opened.store, ObjectKind.FRAGMENT, encode(fragment), opened.entropy)
    ref = ObjectRef(fragment.session + random, len(stored), blake3(stored).digest())
    opened.backend.create(ref.object_name(_KIND), [stored])
    return ref


def take_fragment(opened: OpenStore, key: bytes, ref: ObjectRef, rank: int) -> Fragment:
    """Read the fragment that a rank has left, and remove it.

    Raises:
        IntegrityError: it is damaged, sealed under another key, or another rank's.
    """
    try:
        stored = read_object(opened, ref, _KIND)
    except IntegrityError as error:
        raise IntegrityError(
            f"what rank {rank} has stored is not what this rank reads: {error.message}",
            hint="give all ranks the same store, on storage that they share",
        ) from error
    fragment = open_fragment(opened, key, stored, rank)
    # Of no use any more; what stays of one after a crash is a leftover that collection removes.
    with contextlib.suppress(CairnError):
        opened.backend.delete(ref.object_name(_KIND))
    return fragment


def take_fragments(opened: OpenStore, left: Sequence[tuple[bytes, ObjectRef, int]]) -> list[Fragment]:
    """Fragments by key, place and rank, in order, all read at once; raises as `take_fragment` does."""
    found: dict[int, Fragment] = {}

    def work(numbers: Iterable[int]) -> None:
        for number in numbers:
            found[number] = take_fragment(opened, *left[number])

    Pool[int](len(left), work).run(range(len(left)))
    return [found[number] for number in range(len(left))]


def open_fragment(opened: OpenStore, key: bytes, stored: bytes, rank: int) -> Fragment:
    """The fragment of a rank in stored bytes.

    Raises:
        IntegrityError: as of `take_fragment`.
    """
    what = f"fragment of rank {rank}"
    plain = open_object(key, opened.store, ObjectKind.FRAGMENT, stored, what)
    try:
        # Nothing is signed or named by its encoding, so its spelling need not be the canonical one.
        fragment = _decoder.decode(plain)
    except msgspec.MsgspecError as error:
        raise IntegrityError(f"{what} does not decode: {error}") from None
    if fragment.rank != rank:
        raise IntegrityError(f"{what} says that it is rank {fragment.rank}'s")
    return fragment


# --- the coordinator's ------------------------------------------------------------------------------


class Gathering:
    """Fragments of one save becoming a checkpoint: `add` each, `merge`, `publish`."""

    def __init__(self, registry: Registry, session: Session, save: ChunkSave) -> None:
        self._registry, self._session, self._save = registry, session, save
        self._merger, self._uploads = Merger(), _Uploads()
        self._reports: list[RankReport] = []
        self._components: dict[ComponentClass, ComponentRoot] = {}
        self._pages: ManifestWriter | None = None
        self.replan = False

    def add(self, fragment: Fragment, *, own: bool) -> None:
        """Take up one rank's; `own` is of the session and save given above."""
        self._merger.add(fragment)
        self._uploads.add(fragment, own)
        self._reports.append(RankReport(fragment.rank, fragment.host, fragment.stages, fragment.counts, fragment.notes))
        self.replan = self.replan or fragment.replan

    def merge(self, complete: Callable[[Merged], None] | None = None) -> Merged:
        """Join all fragments and write the pages; they are durable when this returns.

        Args:
            complete: adds entries to what was joined.

        Raises:
            StateMismatch: ranks disagree or leave gaps.
        """
        with self._save.writer() as writer:
            self._pages = pages = ManifestWriter(writer, self._registry.opened.keys)
            merged = self._merger.finish(writer, pages.tensor)
            if complete is not None:
                complete(merged)
            for component in sorted(merged.tensors.keys() | merged.values.keys()):
                tensors = merged.tensors.get(component, [])
                values = [pages.value(key, data) for key, data in merged.values.get(component, [])]
                self._components[component] = pages.component(
                    tensors, values=values, bytes_logical=merged.bytes_logical.get(component, 0)
                )
        return merged

    def publish(self, goal: Goal, notes: Sequence[str] = ()) -> CheckpointId:
        """Commit what was merged; see `registry.publish`."""
        assert self._pages is not None, "merge comes first"
        uploads, written = self._uploads, self._save.written
        parents = (Parent(goal.relation, goal.expected),) if goal.expected is not None else ()
        envelope = Envelope(self._registry.opened.clock.wall_ns(), tuple(self._reports), tuple(notes))
        draft = Draft(
            goal.model, goal.branch, goal.expected, self._components, self._pages.reachable, parents, goal.meta,
            uploads.beside(written), tuple(uploads.sessions), uploads.good, goal.exactness,
            goal.run_epoch, encode(envelope), tuple(uploads.pieces),
        )  # fmt: skip
        return publish(self._registry, self._session, draft)


class _Uploads:
    """What the other ranks have uploaded."""

    def __init__(self) -> None:
        self.sessions: list[bytes] = []
        self.good: tuple[int, int] | None = None
        self.pieces: list[bytes] = []
        self._relied: set[int] = set()

    def add(self, fragment: Fragment, own: bool) -> None:
        """Take up one rank's; of the coordinator's own nothing, whose session speaks for itself."""
        if own:
            return
        epoch, position = self.good or (fragment.epoch, fragment.hit_position)
        self.good = min(epoch, fragment.epoch), min(position, fragment.hit_position)
        self.sessions.append(fragment.session)
        check_piece(fragment.pieces, f"fragment of rank {fragment.rank}")
        self.pieces.append(fragment.pieces)
        self._relied.update(fragment.relied)

    def beside(self, own: Written) -> Written:
        """The coordinator's own, its pages included, with what others rely on."""
        return Written(own.packs, own.entries, own.relied | self._relied, WriteCounts())
