"""Scrubbing the log: every entry from the first on, replayed from stored bytes and not from any cache or shortcut.

Damage shows in three ways: a name is missing though later ones exist, an entry does not open, or a signed root
contradicts the bytes before it. Works without a registry, since a damaged log may keep one from opening.
"""

from collections.abc import Callable, Iterable

from cairn.core.errors import CairnError, IntegrityError, ObjectNotFound
from cairn.core.limits import LOG_ENTRY_BYTES_MAX
from cairn.gc.report import NOBODY, Findings, Target
from cairn.gc.roots import all_roots
from cairn.gc.scrub_shortcuts import ShortcutScrub
from cairn.registry.entries import open_entry
from cairn.registry.localfiles import Head
from cairn.registry.log import listed_length, read_entry
from cairn.registry.merkle import leaf_hash
from cairn.registry.names import entry_name
from cairn.registry.opened import OpenStore
from cairn.registry.replay import UNREADABLE, VOUCHES_NOT, Replay
from cairn.registry.state import State

# A log that was lost as a whole is not spelt out entry by entry.
_MISSING_NAMED = 100

Affected = Callable[[int], Iterable[Target]]


def affected_by(state: State) -> Affected:
    """Which checkpoints an entry made, by its position: those that are lost to whoever reads the log anew.

    Deleted ones that can be restored are among them.
    """
    made: dict[int, list[Target]] = {}
    models = state.kept_models()
    for root in all_roots(state):
        for n in (root.state.n, models[root.model].created_n):
            made.setdefault(n, []).append((root.model.hex(), root.checkpoint.hex()))
    for model, held in models.items():
        made.setdefault(held.created_n, [(model.hex(), "")])
    return lambda n: made.get(n, [NOBODY])


def check_log(
    opened: OpenStore, seen: Head | None, affected: Affected, findings: Findings, folded: State | None = None
) -> State:
    """Check the whole log, and bundles and snapshots by it; returns the state that its intact entries yield.

    Args:
        seen: a head that the log must have had: what the caller folded, or what this machine remembers.
        folded: the state that the caller has at that head.
    """
    return _LogScrub(opened, seen, affected, findings, folded).run()


class _LogScrub:
    def __init__(
        self, opened: OpenStore, seen: Head | None, affected: Affected, findings: Findings, folded: State | None
    ) -> None:
        self._opened = opened
        self._seen = seen
        self._affected = affected
        self._findings = findings
        self._folded = folded
        self._replay = Replay(State(), opened.tenant, opened.store, opened.secrets.k_log)
        self._missing: set[int] = set()
        self._root_seen: bytes | None = None
        self._same_fold = True

    def run(self) -> State:
        """Read, replay, judge."""
        seen_length = self._seen.length if self._seen else 0
        shortcuts = ShortcutScrub(self._opened, self._findings)
        for n in range(max(listed_length(self._opened.backend), seen_length)):
            stored, leaf = self._read(n)
            self._replay.feed(stored, leaf)
            shortcuts.follow(self._replay, stored)
            if n + 1 == seen_length:
                self._root_seen = self._replay.root
                self._same_fold = self._folded is None or self._folded == self._replay.attested().copy()
        state = self._replay.current()
        self._report_missing(state.length)
        bad = self._missing | self._report_unopenable(state)
        self._report_roots(state, bad)
        if not self._findings.problems:
            shortcuts.report(self._replay)
            self._report_fold()
        if bad:
            self._findings.notes.append("nothing can be committed until the damaged log entries are back in place")
        elif state.voids:
            first = f"the first is entry {state.voids[0].n}: {state.voids[0].reason}"
            self._findings.notes.append(f"{len(state.voids)} log entries have no effect; {first}")
        if state.newer_from is not None:
            self._findings.notes.append(f"from log entry {state.newer_from} on, the store is of a newer format")
        return state

    def _read(self, n: int) -> tuple[bytes, bytes]:
        """Stored bytes and leaf hash; of a missing entry no bytes, so that those after it are still looked at."""
        self._findings.objects += 1
        try:
            return read_entry(self._opened, n)
        except ObjectNotFound:
            self._missing.add(n)
        except CairnError as error:
            if error.retryable:
                raise
            self._findings.add(entry_name(n), error.message, self._affected(n))
        return b"", leaf_hash(b"")

    def _report_missing(self, length: int) -> None:
        kept = next((n for n in range(length - 1, -1, -1) if n not in self._missing), -1)
        for n in sorted(self._missing)[:_MISSING_NAMED]:
            what = "it is missing: the log has a hole" if n < kept else "it is missing: the log was cut"
            self._findings.add(entry_name(n), what, self._affected(n))
        if len(self._missing) > _MISSING_NAMED:
            self._findings.notes.append(f"{len(self._missing)} log entries are missing; the first of them are named")

    def _report_unopenable(self, state: State) -> set[int]:
        opened, found = self._opened, set[int]()
        vouched = self._vouched_for(state)
        for void in state.voids:
            if void.n in self._missing or void.reason != UNREADABLE or void.n < vouched:
                continue
            try:
                stored = opened.backend.read(entry_name(void.n), 0, LOG_ENTRY_BYTES_MAX + 1)
                open_entry(stored, void.n, opened.tenant, opened.store, opened.secrets.k_log)
            except IntegrityError as error:
                found.add(void.n)
                self._findings.add(entry_name(void.n), error.message, self._affected(void.n))
            except CairnError:
                found.add(void.n)  # reported when it was read
        return found

    def _vouched_for(self, state: State) -> int:
        """Position of the newest entry whose signed root agrees with all bytes before it; 0 if the log is damaged.

        What does not open before that was written so: by a storage system that kept half an upload, or a foreign hand.
        """
        if state.damaged_from is not None or self._missing:
            return 0
        silent = {void.n for void in state.voids if void.reason in VOUCHES_NOT}
        return next((n for n in range(state.length - 1, 0, -1) if n not in silent), 0)

    def _report_roots(self, state: State, bad: set[int]) -> None:
        if bad:
            return  # which explains any contradiction
        seen, what = self._seen, ""
        if state.damaged_from is not None:
            n = state.damaged_from
            what = "its signed root contradicts the entries before it, all of which open: one of them was replaced"
        elif seen is not None and self._root_seen != seen.root:
            n = seen.length - 1
            what = "the log is in order, but up to here it is not the one that this machine has seen"
        if what:
            self._findings.add(entry_name(n), what, self._affected(n))

    def _report_fold(self) -> None:
        if not self._same_fold:
            cache = self._opened.home.cache_folder(self._opened.store)
            what = "what this machine made of the log, or took from a snapshot, is not what the entries say"
            self._findings.add("", f"{what}: remove {cache}, and the snapshots that are named here")
