"""The scrub: reads a store again and compares it with what was committed. Writes nothing into the store.

Order, so that each step can lean on those before:

1. log - every entry anew, and shortcuts by them; then the checks go by the state that the registry holds.
2. keys - format and root records, wraps.
3. directories - index pieces, sizes and footers of packs: where content lies.
4. manifests - bodies, roots, pages, reachability lists: what must be there, and the digests of all of it.
5. chunks (full only) - every stored byte of the packs in force.
6. blame - which checkpoints, tensors and files the damage hits.
7. sessions and leftovers.
"""

from contextlib import suppress

from cairn.core.errors import CairnError, ObjectNotFound
from cairn.core.ids import ModelId
from cairn.core.progress import Progress, Silent
from cairn.gc.blame import Blame
from cairn.gc.orphans import report_orphans
from cairn.gc.places import Places
from cairn.gc.report import Findings, VerifyReport
from cairn.gc.roots import live_checkpoints, named_objects, packs_in_force
from cairn.gc.scrub_chunks import ChunkCounts, ChunkScrub
from cairn.gc.scrub_keys import check_keys
from cairn.gc.scrub_log import affected_by, check_log
from cairn.gc.scrub_manifests import ManifestScrub
from cairn.gc.scrub_packs import PackDirectories
from cairn.registry.localfiles import Head
from cairn.registry.merkle import root_of
from cairn.registry.models import model_name
from cairn.registry.opened import OpenStore
from cairn.registry.registry import Registry
from cairn.registry.session import open_sessions, read_session, session_object
from cairn.registry.state import State
from cairn.store.chunkstore import ChunkStore


def verify(registry: Registry, full: bool, progress: Progress | None = None) -> VerifyReport:
    """Check a store; damage is reported, not raised.

    Args:
        full: open every stored chunk as well; else packs are checked by size, header, footer and trailer.

    Raises:
        TryAgain: the storage gives no answer for now.
    """
    state = registry.refresh().copy()
    places = Places(state, registry.index())
    try:
        return _Scrub(registry, state, places, progress or Silent()).run(full)
    finally:
        places.close()


class _Scrub:
    def __init__(self, registry: Registry, state: State, places: Places, progress: Progress) -> None:
        self._registry = registry
        self._state = state
        self._places = places
        self._progress = progress
        self._findings = Findings()

    def run(self, full: bool) -> VerifyReport:
        opened, state, findings = self._registry.opened, self._state, self._findings
        self._progress.stage("log")
        check_log(opened, Head(state.length, root_of(state.frontier)), affected_by(state), findings, state)
        log_is_whole = not any(problem.object.startswith("log/") for problem in findings.problems)
        readable = check_keys(opened, state, findings)
        self._progress.stage("manifests")
        stored = {listed.name: listed.size for listed in opened.backend.list("objects")}
        directories = PackDirectories(opened, state, stored, findings)
        directories.check(self._places)
        roots = live_checkpoints(state)
        manifests = ManifestScrub(self._registry, self._places, readable, findings)
        for root in roots:
            manifests.check(root)
        counts = self._scrub_chunks(directories, manifests) if full else ChunkCounts()
        Blame(opened, self._places, manifests, findings).run(roots)
        if manifests.forgotten:
            cache = opened.home.cache_folder(opened.store)
            text = f"this machine's index lacks {manifests.forgotten} chunks that the store has: remove {cache}"
            findings.notes.append(text)
        _check_sessions(opened, findings)
        leftovers = stored.keys() - named_objects(state)
        if not log_is_whole:
            report_orphans(opened, state, leftovers, findings)
        affected = {problem.model for problem in findings.problems}
        return VerifyReport(
            ok=not findings.problems,
            full=full,
            checkpoints=len(roots),
            chunks=len(manifests.needed),
            objects=findings.objects,
            errors=findings.problems,
            notes=tuple(findings.notes),
            chunks_opened=counts.opened,
            bytes_read=counts.bytes_read,
            chunks_unnamed=counts.unnamed,
            leftover_objects=len(leftovers),
            leftover_bytes=sum(stored[name] for name in leftovers),
            names={model.hex(): self._name(model) for model in readable if model.hex() in affected},
        )

    def _scrub_chunks(self, directories: PackDirectories, manifests: ManifestScrub) -> ChunkCounts:
        packs = packs_in_force(self._state)
        self._progress.stage("read", sum(self._state.pack(number).size for number in packs))
        chunks = ChunkStore(self._registry.opened.access, self._places)
        return ChunkScrub(chunks, self._places, manifests.pages.digest, self._progress).run(directories, packs)

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
