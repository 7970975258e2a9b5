"""What a doctor says of stores that are well, and of each thing that is not."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cairn.core.clock import Clock
from cairn.core.ids import RANDOM_ID_BYTES
from cairn.gc.collect import Collector, Options
from cairn.gc.doctor import examine
from cairn.gc.doctor_machine import file_system
from cairn.gc.record import record
from cairn.gc.remark import ACT, FINE, Remark, size, span
from cairn.gc.scrub import verify
from cairn.registry.entries_deletion import Drop, Tombstone
from cairn.registry.pins import Pin
from cairn.registry.reads import gather
from cairn.registry.registry import Registry
from cairn.registry.session import Session
from cairn.store.backends.faults import Crash, FaultyBackend, Stopped
from cairn.store.backends.posix import PosixBackend
from tests.support.doubles import HeldClock
from tests.support.stores import Site, commit_tree, new_site, tip
from tests.support.trees import write_files


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A store in a folder, as it is on a disk."""
    return new_site(tmp_path / "home", PosixBackend(tmp_path / "store"))


@pytest.fixture
def commit(site: Site, tmp_path: Path) -> Callable[[int], object]:
    def make(step: int) -> object:
        tree = write_files(tmp_path / f"t{step}", {"a": bytes((step, 1)) * 5000})
        return commit_tree(site.registry(), tree, step=step)

    return make


def about(registry: Registry, topic: str) -> list[Remark]:
    return [one for one in examine(registry) if one.topic == topic]


def test_a_store_that_is_well_needs_no_hand(site: Site, commit: Callable[[int], object]) -> None:
    commit(1)
    remarks = examine(site.registry())
    assert not [one for one in remarks if one.level == ACT]
    topics = [one.topic for one in remarks]
    assert {"store", "log", "writing", "key", "identity", "state", "cache", "clock", "space", "sessions"} <= set(topics)
    assert {"leftovers", "verified"} <= set(topics)
    assert all(one.text for one in remarks)


def test_a_store_in_no_folder_is_examined_too(tmp_path: Path) -> None:
    topics = {one.topic for one in examine(new_site(tmp_path / "other").registry())}
    assert "log" in topics and "space" not in topics


def test_it_reads_no_pack(site: Site, commit: Callable[[int], object]) -> None:
    commit(1)
    through = FaultyBackend(site.backend)
    examine(site.registry(through))
    assert not [call for call in through.calls if call.name.endswith(".pack")]
    assert not [call for call in through.calls if call.op in ("create", "delete", "reclaim")]


def test_a_key_file_that_others_can_read_needs_a_hand(site: Site) -> None:
    path = site.open().key_file
    assert path is not None
    path.chmod(0o644)
    (remark,) = about(site.registry(), "key")
    assert remark.level == ACT and remark.next == f"chmod 600 {path}"
    path.chmod(0o600)
    assert about(site.registry(), "key")[0].level == FINE


def test_a_stranger_is_told_that_he_signs_with_the_recovery_identity(site: Site) -> None:
    (site.home.state / "identity.key").unlink()
    (remark,) = about(site.registry(), "identity")
    assert "recovery identity" in remark.text


def test_a_damaged_log_needs_a_hand(site: Site, commit: Callable[[int], object]) -> None:
    commit(1)
    name = site.log()[1]
    data = site.backend.read(name)
    site.backend.delete(name)
    site.backend.create(name, [data[:-1] + bytes([data[-1] ^ 1])])
    registry = site.registry(cold=True)
    assert about(registry, "log")[0].level == about(registry, "writing")[0].level == ACT


def test_sessions_are_told_with_their_process(site: Site, commit: Callable[[int], object]) -> None:
    commit(1)
    registry = site.registry()
    with Session(registry) as session:
        session.ensure_open()
        (remark,) = about(registry, "sessions")
        assert session.id.hex() in remark.text and f"process {os.getpid()} of this machine" in remark.text
        assert "counts as alive" in remark.text
    assert about(registry, "sessions")[0].text == "no writer is at work"


def test_a_dead_writers_leftovers_are_told(site: Site, tmp_path: Path, commit: Callable[[int], object]) -> None:
    commit(1)
    crashing = FaultyBackend(site.backend, [Crash(op="create", name="log/*")])
    with pytest.raises(Stopped):
        commit_tree(site.registry(crashing), write_files(tmp_path / "x", {"b": os.urandom(70_000)}), step=2)
    late = replace(site, clock=HeldClock())
    # Its process lives, so its silence decides.
    registry = late.registry()
    assert about(registry, "leftovers")[0].level == FINE
    _pass(late.clock, registry.state.silence_seconds + 1)
    remark = about(registry, "leftovers")[0]
    assert remark.level != FINE and "KiB" in remark.text and "gc apply" in remark.next
    assert any("is dead" in one.text for one in about(registry, "sessions"))


def _pass(clock: Clock, seconds: float) -> None:
    clock.sleep(seconds)


def test_what_is_condemned_waits_for_somebody(site: Site, commit: Callable[[int], object]) -> None:
    for step in (1, 2):
        commit(step)
    registry = site.registry()
    model, newest = tip(registry)
    older = next(one for one in registry.state.models[model].checkpoints if one != newest)
    registry.append(lambda state: Tombstone(model, (older,), 0, "test"))
    assert about(registry, "deleted")[0].next.startswith("cairn gc apply")
    registry.append(lambda state: Drop(model, (older,)))
    with Session(site.registry()) as session:
        session.ensure_open()
        Collector(registry, Options(condemn_only=True)).run()
        (remark,) = about(registry, "condemned")
        assert session.id.hex() in remark.text
    (remark,) = about(registry, "condemned")
    assert "wait" not in remark.text and "gc apply" in remark.next


def test_readers_are_told(site: Site, commit: Callable[[int], object]) -> None:
    commit(1)
    registry = site.registry()
    pin = Pin(registry, *tip(registry))
    (remark,) = about(registry, "pins")
    assert tip(registry)[1].hex()[:12] in remark.text
    pin.release()
    assert not about(registry, "pins")
    assert about(registry, "reads")[0].text.startswith("1 read that ended")
    gather(registry)
    assert not about(registry, "reads")


def test_the_last_verification_has_an_age(site: Site, commit: Callable[[int], object]) -> None:
    commit(1)
    registry = site.registry()
    assert "no checkpoint is known" in about(registry, "verified")[0].text
    record(registry, verify(registry, full=True))
    assert "1 of 1 checkpoint were read and found whole, last 0 s ago (full)" in about(registry, "verified")[0].text
    _pass(site.clock, 40 * 86400)
    remark = about(site.registry(), "verified")[0]
    assert "40 days ago" in remark.text and remark.level != FINE


def test_a_checkpoint_from_the_future_tells_of_a_wrong_clock(site: Site, commit: Callable[[int], object]) -> None:
    _pass(site.clock, 7200)
    commit(1)
    (remark,) = about(replace(site, clock=HeldClock()).registry(), "clock")
    assert remark.level == ACT and "2 h in the future" in remark.text


def test_old_temporary_files_are_counted(site: Site, commit: Callable[[int], object], tmp_path: Path) -> None:
    commit(1)
    path = tmp_path / "store" / "objects" / ".tmp-0123"
    path.write_bytes(b"x" * 3000)
    now = site.clock.wall_ns()
    os.utime(path, ns=(now, now))
    assert not about(site.registry(), "temporary files")
    os.utime(path, ns=(now - 2 * 3600 * 10**9,) * 2)
    assert "1 temporary file of 2.9 KiB" in about(site.registry(), "temporary files")[0].text


def test_places_that_failed_before_need_a_hand(site: Site, commit: Callable[[int], object]) -> None:
    commit(1)
    name = max(site.names(".pack"), key=site.backend.size)
    data = site.backend.read(name)
    site.backend.delete(name)
    site.backend.create(name, [data[:100] + bytes([data[100] ^ 1]) + data[101:]])
    registry = site.registry()
    assert not about(registry, "damage")
    verify(registry, full=True)
    assert about(registry, "damage")[0].level == ACT


def test_an_unreadable_session_needs_a_hand(site: Site) -> None:
    site.backend.create(f"sessions/{'ab' * RANDOM_ID_BYTES}.open", [b"nonsense"])
    (remark,) = about(site.registry(), "sessions")
    assert remark.level == ACT and f"--give-up {'ab' * RANDOM_ID_BYTES}" in remark.next


def test_the_file_system_of_a_path_is_known_on_linux(tmp_path: Path) -> None:
    assert file_system(Path("/proc")) == "proc"
    assert file_system(tmp_path) not in ("", "proc")


def test_numbers_for_people() -> None:
    assert [span(1), span(150), span(3 * 3600), span(3 * 86400)] == ["1 s", "2 min", "3 h", "3 days"]
    assert [size(3), size(3 << 10), size(3 << 30)] == ["3 B", "3.0 KiB", "3.0 GiB"]
