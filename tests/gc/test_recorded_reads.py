"""Collection and the records of reads: it gathers them, and none of them holds it up."""

from pathlib import Path

import pytest

from cairn.core.ids import CheckpointId
from cairn.core.process import ProcessMark, this_machine
from cairn.gc.collect import Collected, Collector
from cairn.registry import pins
from cairn.registry.auditlines import Trail, Wanted
from cairn.registry.entries_deletion import Drop, Tombstone
from cairn.registry.fold_policy import AUDIT_READS, AuditReads
from cairn.registry.logview import LogView
from cairn.registry.pins import Pin, pinned
from cairn.registry.policy import set_policy
from cairn.registry.reads import ReadRecord
from cairn.registry.registry import Registry
from tests.support.stores import Site, commit_tree, tip
from tests.support.trees import write_files


@pytest.fixture
def old(site: Site, tmp_path: Path) -> CheckpointId:
    """A checkpoint that no ref names, behind the tip."""
    registry = site.registry()
    for text in (b"one" * 50_000, b"two" * 50_000):
        commit_tree(registry, write_files(tmp_path / text[:3].decode(), {"a.bin": text}))
    parent = registry.state.models[tip(registry)[0]].checkpoints[tip(registry)[1]].parent
    assert parent is not None
    return CheckpointId(parent)


def collect(registry: Registry) -> Collected:
    return Collector(registry).run()


def drop(registry: Registry, checkpoint: CheckpointId) -> None:
    model = tip(registry)[0]
    registry.append(lambda state: Tombstone(model, (checkpoint,), 0, "test"))
    registry.append(lambda state: Drop(model, (checkpoint,)))


def told(registry: Registry) -> list[ReadRecord]:
    trail = Trail(LogView.of(registry.opened), Wanted(kinds=("reads",)))
    return [read for line in trail.lines for read in line.reads]


def test_a_collection_records_reads_that_have_ended(site: Site, old: CheckpointId) -> None:
    registry, reading = site.registry(), site.registry()
    with pinned(reading, tip(reading)[0], old):
        assert collect(registry).reads_recorded == 0
    assert collect(registry).reads_recorded == 1
    assert [read.checkpoint for read in told(registry)] == [old] and not list(site.backend.list("pins"))


def test_an_ended_read_defers_nothing(site: Site, old: CheckpointId) -> None:
    registry, reading = site.registry(), site.registry()
    with pinned(reading, tip(reading)[0], old):
        drop(registry, old)
        assert collect(registry).objects_deferred > 0, "a live one does"
    assert [listed.name.rpartition(".")[2] for listed in site.backend.list("pins")] == ["ended"]
    done = collect(registry)
    assert done.objects_deleted > 0 and done.objects_deferred == 0


@pytest.mark.parametrize("recording", list(AuditReads))
def test_the_read_of_a_reader_who_died_is_recorded(
    site: Site, old: CheckpointId, monkeypatch: pytest.MonkeyPatch, recording: AuditReads
) -> None:
    registry = site.registry()
    set_policy(registry, AUDIT_READS, recording)
    reading = site.registry()
    monkeypatch.setattr(pins, "this_process", lambda: ProcessMark(this_machine(), 1 << 30, 1))
    Pin(reading, tip(reading)[0], old)._heart.stop()
    kept = recording is not AuditReads.OFF
    assert collect(registry).reads_recorded == kept
    assert len(told(registry)) == kept and not list(site.backend.list("pins"))
