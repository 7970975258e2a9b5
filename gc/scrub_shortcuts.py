"""Scrubbing bundles and fold snapshots, by the log, which is replayed from entry 0 and from neither.

A damaged one costs readers time only and is a note. A snapshot that an owner signed and that says something else than
the log is a problem: whoever starts from it sees another history.
"""

from cairn.core.errors import CairnError, ObjectNotFound
from cairn.core.limits import BUNDLE_ENTRIES
from cairn.gc.report import Findings
from cairn.registry.bundles import bundle_name, listed_bundles, read_bundle
from cairn.registry.fold import STATE_VERSION
from cairn.registry.merkle import leaf_hash
from cairn.registry.opened import OpenStore
from cairn.registry.replay import Replay
from cairn.registry.snapshots import SnapshotName, listed_snapshots, read_snapshot
from cairn.registry.state import State


class ShortcutScrub:
    """Follows the replay of a log, and compares. Make it before the log is listed: it may grow meanwhile."""

    def __init__(self, opened: OpenStore, findings: Findings) -> None:
        self._opened = opened
        self._findings = findings
        self._bundles = set(listed_bundles(opened))
        self._snapshots = [name for name in listed_snapshots(opened) if name.version == STATE_VERSION]
        self._owners: list[bytes] = []
        self._leaves: list[bytes] = []
        self._lies: list[tuple[SnapshotName, str]] = []
        self._useless: list[str] = []

    def follow(self, replay: Replay, stored: bytes) -> None:
        """Look at what lies at the position that the replay has reached, `stored` being its last entry."""
        if replay.length == 1:
            self._owners = list(replay.attested().owners)
        self._leaves.append(leaf_hash(stored))
        if len(self._leaves) == BUNDLE_ENTRIES:
            self._check_bundle(replay.length // BUNDLE_ENTRIES - 1)
            self._leaves.clear()
        for name in self._snapshots:
            if name.length == replay.length:
                state = self._opened_snapshot(name)
                if state is not None and state != replay.attested().copy():
                    self._lies.append((name, f"an owner signed another state than its first {name.length} entries say"))

    def report(self, replay: Replay) -> None:
        """Report, once the replay is at the end of a log that is intact: what a damaged one contradicts may be true."""
        for name in self._snapshots:
            if name.length > replay.length and self._opened_snapshot(name) is not None:
                what = f"an owner signed it when the log had {name.length} entries; it has {replay.length}: it was cut"
                self._lies.append((name, what))
        beyond = [number for number in self._bundles if (number + 1) * BUNDLE_ENTRIES > replay.length]
        self._useless += [bundle_name(number) for number in sorted(beyond)]
        for name, what in self._lies:
            self._findings.add(name.object, what)
        for useless in self._useless:
            text = f"{useless} is damaged or of another log: nobody uses it, and it can be removed"
            self._findings.notes.append(text)

    def _check_bundle(self, number: int) -> None:
        if number not in self._bundles:
            return
        self._findings.objects += 1
        try:
            if [leaf_hash(entry) for entry in read_bundle(self._opened, number)] != self._leaves:
                self._useless.append(bundle_name(number))
        except ObjectNotFound:
            return  # removed meanwhile
        except CairnError as error:
            if error.retryable:
                raise
            self._useless.append(bundle_name(number))

    def _opened_snapshot(self, name: SnapshotName) -> State | None:
        self._findings.objects += 1
        try:
            return read_snapshot(self._opened, self._owners, name)
        except ObjectNotFound:
            return None  # removed meanwhile
        except CairnError as error:
            if error.retryable:
                raise
            self._useless.append(name.object)
            return None
