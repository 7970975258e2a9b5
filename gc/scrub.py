"""The scrub: reads a store again and compares it with what was committed. Writes nothing into the store.

Order, so that each step can lean on those before:

1. log - every entry anew, and shortcuts by them; then the checks go by the state that the registry holds.
2. keys - format and root records, wraps.
3. directories - index pieces, sizes and footers of packs: where content lies.
4. manifests - bodies, roots, pages, reachability lists: what must be there, and the digests of all of it.
5. chunks (full or a sample) - stored bytes of the packs in force, those first that matter most.
6. blame - which checkpoints, tensors and files the damage hits.
7. sessions and leftovers.

Beside a collector, what was in force may be gone when it is read. So if damage shows and the log tells meanwhile that
something went, all is looked at once more; packs that were read are not read again.
"""

from collections.abc import Callable
from contextlib import closing, suppress

from cairn.core.errors import CairnError, ObjectNotFound
from cairn.core.ids import ModelId
from cairn.core.progress import Progress, Silent
from cairn.gc.blame import Blame
from cairn.gc.depth import FULL, QUICK, Depth
from cairn.gc.orphans import report_orphans
from cairn.gc.places import Damage, Places
from cairn.gc.remark import several
from cairn.gc.report import Findings, VerifyReport
from cairn.gc.roots import (
    all_roots,
    deleted_checkpoints,
    live_checkpoints,
    named_objects,
    packs_in_force,
    roots_by_value,
)
from cairn.gc.scrub_chunks import ChunkCounts, ChunkScrub, PackCounts
from cairn.gc.scrub_keys import check_keys
from cairn.gc.scrub_log import affected_by, check_log
from cairn.gc.scrub_manifests import ManifestScrub
from cairn.gc.scrub_memory import ScrubMemory
from cairn.gc.scrub_packs import PackDirectories
from cairn.gc.superseded import Superseded
from cairn.registry.localfiles import Head
from cairn.registry.merkle import root_of
from cairn.registry.models import model_name
from cairn.registry.opened import OpenStore
from cairn.registry.registry import Registry
from cairn.registry.session import open_sessions, read_session, session_object
from cairn.registry.state import State, pack_key
from cairn.store.chunkstore import ChunkStore

_LOOKS_MAX = 5
_UNNEEDED = "what no checkpoint needs"


def verify(
    registry: Registry,
    full: bool = False,
    progress: Progress | None = None,
    *,
    depth: Depth | None = None,
    memory: ScrubMemory | None = None,
    told: Callable[[str], None] | None = None,
) -> VerifyReport:
    """Check a store; damage is reported, not raised.

    Args:
        full: open every stored chunk as well; else packs are checked by size, header, footer and trailer.
        depth: what is opened, in finer steps; `full` then says nothing.
        memory: of an interrupted run, which this one goes on with.
        told: told at once of each pack in which damage is found: the report may be hours away.

    Raises:
        TryAgain: the storage gives no answer for now.
    """
    with closing(Scrub(registry, depth or (FULL if full else QUICK), progress, memory, told)) as scrub:
        return scrub.run()


class Scrub:
    """One scrub, and what it knows at its end.

    Attributes:
        state, places, directories, manifests, superseded, findings: of the last look.
    """

    state: State
    places: Places
    directories: PackDirectories
    manifests: ManifestScrub
    superseded: Superseded
    findings: Findings

    def __init__(
        self,
        registry: Registry,
        depth: Depth,
        progress: Progress | None = None,
        memory: ScrubMemory | None = None,
        told: Callable[[str], None] | None = None,
    ) -> None:
        self._registry, self._depth, self._memory, self._told = registry, depth, memory, told
        self._progress = progress or Silent()
        self._counts = ChunkCounts()
        self._remembered = 0
        # Packs whose bytes were read by an earlier look.
        self._read: set[int] = set()
        self._places: Places | None = None

    def run(self) -> VerifyReport:
        """Look at everything; what was read before is not read again."""
        for _ in range(_LOOKS_MAX):
            report = self._look()
            if report.ok or not self._something_went():
                break
        return report

    def close(self) -> None:
        """Remove temporary files."""
        if self._places is not None:
            self._places.close()

    def _look(self) -> VerifyReport:
        registry, opened = self._registry, self._registry.opened
        self.state, self.findings = registry.refresh().copy(), Findings()
        state, findings = self.state, self.findings
        known: list[Damage] = []
        if self._places is not None:
            known = [damage for damage in self._places.damages() if damage.at.pack in self._read and damage.why]
            self._places.close()
        self.places = self._places = Places(state, registry.index(), known)
        self._progress.stage("log")
        check_log(opened, Head(state.length, root_of(state.frontier)), affected_by(state), findings, state)
        log_is_whole = not any(problem.object.startswith("log/") for problem in findings.problems)
        readable = check_keys(opened, state, findings)
        self._progress.stage("manifests")
        stored = {listed.name: listed.size for listed in opened.backend.list("objects")}
        self.directories = PackDirectories(opened, state, stored, findings)
        self.directories.check(self.places)
        self.manifests = ManifestScrub(registry, self.places, readable, findings)
        packs = self._check_manifests()
        if self._depth.part:
            self._read_packs(packs)
        roots = live_checkpoints(state)
        Blame(opened, self.places, self.manifests, findings).run(all_roots(state))
        if self.manifests.closed:
            findings.notes.append(
                f"{several(self.manifests.closed, 'component')} not granted to you: the roots are those that were "
                "committed, and what they say was not read"
            )
        if self.manifests.forgotten:
            cache = opened.home.cache_folder(opened.store)
            text = f"this machine's index lacks {self.manifests.forgotten} chunks that the store has: remove {cache}"
            findings.notes.append(text)
        _check_sessions(opened, findings)
        leftovers = stored.keys() - named_objects(state)
        if not log_is_whole:
            report_orphans(opened, state, leftovers, findings)
        superseded = self.superseded = Superseded(state, self.places, self.directories, self.manifests)
        errors = tuple(one for one in findings.problems if not superseded.covers(one))
        affected = {problem.model for problem in errors}
        hurt = {problem.checkpoint for problem in errors}
        return VerifyReport(
            ok=not errors,
            full=self._depth.part >= 1,
            checkpoints=len(roots),
            chunks=len(self.manifests.needed),
            objects=findings.objects,
            errors=errors,
            notes=tuple(findings.notes),
            depth=self._depth.name,
            seed=self._depth.seed,
            superseded=tuple(one for one in findings.problems if superseded.covers(one)),
            chunks_opened=self._counts.opened,
            bytes_read=self._counts.bytes_read,
            packs_remembered=self._remembered,
            chunks_unnamed=self._counts.unnamed,
            leftover_objects=len(leftovers),
            leftover_bytes=sum(stored[name] for name in leftovers),
            names={model.hex(): self._name(model) for model in readable if model.hex() in affected},
            deleted=frozenset(root.checkpoint.hex() for root in deleted_checkpoints(state)) & hurt,
            whole=tuple(
                (root.model, root.checkpoint) for root in roots
                if root.checkpoint.hex() not in hurt and not root.state.partial and root.model in readable
            ),
        )  # fmt: skip

    def _check_manifests(self) -> dict[str, list[int]]:
        """Check all manifests; returns the packs to read, by what they are of, what matters most first."""
        found: dict[str, list[int]] = {}
        for name, root in roots_by_value(self.state):
            known = len(self.manifests.packs)
            self.manifests.check(root)
            found.setdefault(name, []).extend(list(self.manifests.packs)[known:])
        known = len(self.manifests.packs)
        for root in deleted_checkpoints(self.state):
            self.manifests.check_deleted(root)
        found["deleted checkpoints"] = list(self.manifests.packs)[known:]
        found[_UNNEEDED] = [number for number in packs_in_force(self.state) if number not in self.manifests.packs]
        return found

    def _read_packs(self, packs: dict[str, list[int]]) -> None:
        state, memory = self.state, self._memory
        if memory is not None and not self._read:
            held = [n for some in packs.values() for n in some if memory.holds(pack_key(state.pack(n)), state.live_n)]
            # Of a pack that is damaged by now, nothing is to be believed.
            self._read.update(number for number in held if number not in self.directories.flawed)
            self._remembered = len(self._read)
        chunks = ChunkStore(self._registry.opened.access, self.places)
        scrub = ChunkScrub(chunks, self.places, self.manifests, self._counts, self._note_read)
        for name, numbers in packs.items():
            fresh = [number for number in numbers if number not in self._read]
            if not fresh:
                continue
            self._progress.stage(f"read {name}", int(self._depth.part * sum(state.pack(n).size for n in fresh)))
            scrub.run(self.directories, fresh, self._depth, self._progress)

    def _note_read(self, number: int, counts: PackCounts) -> None:
        if counts.bad and self._told is not None:
            what = several(counts.bad, "chunk or page is", "chunks and pages are")
            self._told(f"{self.state.pack(number).name}: {what} damaged")
        if counts.blind:
            return  # once the page can be read that names the rest, that is to be opened
        self._read.add(number)
        if self._memory is not None and not counts.bad and number not in self.directories.flawed:
            self._memory.add(pack_key(self.state.pack(number)), counts.unnamed, self.state.length)

    def _something_went(self) -> bool:
        """Whether a collector went on since the look began, so that what it saw may be no damage."""
        before, now = self.state, self._registry.refresh()
        after = {(root.model, root.checkpoint) for root in all_roots(now)}
        return (
            (before.epoch, before.floor, before.swept) != (now.epoch, now.floor, now.swept)
            or before.condemned != now.condemned
            or before.condemned_objects != now.condemned_objects
            or any(piece not in now.pieces for piece in before.pieces)
            or any((root.model, root.checkpoint) not in after for root in all_roots(before))
        )

    def _name(self, model: ModelId) -> str:
        try:
            return model_name(self._registry, model)
        except CairnError:
            return ""


def _check_sessions(opened: OpenStore, findings: Findings) -> None:
    for session in open_sessions(opened):
        # Not found: its writer ended meanwhile.
        with findings.about(session_object(session)), suppress(ObjectNotFound):
            read_session(opened, session)
