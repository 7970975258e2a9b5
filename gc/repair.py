"""Repair: what a scrub found damaged or missing is brought from where it is whole.

Nothing is overwritten. Content goes into new packs, lists, bodies, roots and index pieces into new objects; log entries
(`supply`, `index`) that obey the commit rule put them into the place of the old ones, which collection then removes.
What it takes may lie elsewhere in the store, or in another store of the tenant; all is authenticated on the way.

One round mends what is in reach, a scrub looks again, and the next round goes by what became readable: a root shows its
pages, pages show their chunks.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

from cairn.core.errors import CairnError, ConflictError, RefMoved
from cairn.core.ids import ContentId
from cairn.core.progress import Progress, Silent
from cairn.gc.depth import Depth
from cairn.gc.repair_content import ContentRepair
from cairn.gc.repair_index import rebuild_piece
from cairn.gc.repair_manifests import Fix, ManifestRepair
from cairn.gc.report import VerifyReport
from cairn.gc.roots import Root, roots_by_value
from cairn.gc.scrub import Scrub
from cairn.gc.scrub_memory import ScrubMemory
from cairn.registry.entries import MergeIndex, Supply
from cairn.registry.reachability import read_reachability
from cairn.registry.registry import Registry
from cairn.registry.session import Session
from cairn.registry.state import Piece, State
from cairn.registry.uploads import Uploads
from cairn.store.chunkstore import ChunkSave
from cairn.store.written import Written

# Log, roots, pages, pages of pages, chunks: each can become readable by the round before; and twice for collectors.
_ROUNDS_MAX = 8
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Mended:
    """Something that was mended: in the place of what object, what was brought, and where from."""

    object: str
    what: str
    source: str


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What a repair found, what it mended, and what is left."""

    before: VerifyReport
    after: VerifyReport
    mended: tuple[Mended, ...]


class _Vanished(ConflictError):
    """What was to be mended is gone, or was mended by others."""

    code = ConflictError.code


class Repair:
    """One repair of one store."""

    def __init__(
        self,
        registry: Registry,
        sources: Mapping[str, Registry],
        depth: Depth,
        progress: Progress | None = None,
        memory: ScrubMemory | None = None,
        told: Callable[[str], None] | None = None,
    ) -> None:
        """Nothing happens before `run`.

        Args:
            sources: other stores of the tenant, by what to call them.
            told: see `verify`.
        """
        self._registry, self._sources = registry, dict(sources)
        self._progress = progress or Silent()
        self._scrub = Scrub(registry, depth, self._progress, memory, told)
        self._mended: list[Mended] = []

    def run(self) -> RepairReport:
        """Scrub, mend, and scrub again until nothing more can be mended.

        Raises:
            NotAllowed: this user may not write.
            IntegrityError: the log is damaged: until its entries are back in place, nothing can be written.
        """
        with closing(self._scrub) as scrub:
            before = report = scrub.run()
            for _ in range(_ROUNDS_MAX):
                if report.ok and not report.superseded:
                    break
                self._registry.check_writable()
                if not self._mend():
                    break
                report = scrub.run()
            return RepairReport(before, report, tuple(self._mended))

    def _mend(self) -> bool:
        """Mend what is in reach; whether anything was."""
        for left in reversed(range(_TRIES)):
            try:
                with Session(self._registry) as session:
                    return self._mend_under(session)
            except ConflictError as error:
                if isinstance(error, RefMoved) or not left:
                    raise
                self._registry.refresh()
        raise AssertionError("unreachable")

    def _mend_under(self, session: Session) -> bool:
        self._progress.stage("repair")
        registry, opened = self._registry, self._registry.opened
        save = session.save()
        save.anew = True
        content = ContentRepair(registry, self._scrub, self._sources)
        moved = content.bring(save, self._progress)
        manifests = ManifestRepair(registry, self._scrub, self._sources)
        uploads = Uploads(opened, session)
        good = session.settle()
        fixes = manifests.fixes(uploads)
        carrier = self._root_of(moved) if moved and not any(fix.readable for fix in fixes) else None
        if carrier is not None:
            fixes.append(Fix(carrier))
        done: list[Mended] = []
        # What was stored anew travels with the first entry whose list can be read.
        fixes.sort(key=lambda fix: not fix.readable)
        for number, fix in enumerate(fixes):
            carried = save if moved and fix.readable and not number else None
            self._supply(uploads, fix, good, carried)
            done += [Mended(*one) for one in (fix.told + (content.told() if carried else []))]
        for piece in self._scrub.directories.bad_pieces:
            done += self._rebuild(uploads, piece, good)
        self._mended += done
        return bool(done)

    def _root_of(self, ids: set[ContentId]) -> Root | None:
        """A checkpoint that needs some of what was brought, and whose list can be read.

        Failing that, any other: what only deleted checkpoints need travels with the entry of a live one.
        """
        other = None
        for _, root in roots_by_value(self._registry.state):
            try:
                if not ids.isdisjoint(read_reachability(self._registry.opened, root.state)):
                    return root
            except CairnError:
                continue  # its own damage is another matter
            other = other or root
        return other

    def _supply(self, uploads: Uploads, fix: Fix, good: tuple[int, int], save: ChunkSave | None) -> None:
        packs, pieces = uploads.index(save.written if save is not None else Written())
        root = fix.root

        def build(state: State) -> Supply:
            model = state.models.get(root.model)
            held = model.checkpoints.get(root.checkpoint) if model else None
            if held is None or (fix.reachability and held.reachability != root.state.reachability):
                raise _Vanished(f"checkpoint {root.checkpoint.hex()} changed while it was repaired")
            return Supply(
                model=root.model,
                checkpoint=root.checkpoint,
                sessions=(uploads.session.id,),
                epoch=good[0],
                hit_position=good[1],
                relied=(),
                packs=packs,
                pieces=pieces,
                reachability=fix.reachability or held.reachability,
                partial=held.partial,
                body=fix.body,
                roots=fix.roots,
                envelope=fix.envelope,
            )

        self._registry.append(build)

    def _rebuild(self, uploads: Uploads, piece: Piece, good: tuple[int, int]) -> list[Mended]:
        name = piece.object.object_name("index")
        scrub = self._scrub
        all_served = not scrub.manifests.unplaced and all(
            map(scrub.places.serves, scrub.manifests.needed | scrub.manifests.restorable)
        )
        plain = rebuild_piece(self._registry.opened, scrub.state, piece, give_up=all_served)
        if plain is None:
            return []
        ref = uploads.index_piece(plain)

        def build(state: State) -> MergeIndex:
            if piece not in state.pieces:
                raise _Vanished(f"{name} was replaced meanwhile")
            return MergeIndex((uploads.session.id,), good[0], ref, piece.first, piece.count)

        self._registry.append(build)
        return [Mended(name, "rebuilt", "the footers of its packs")]
