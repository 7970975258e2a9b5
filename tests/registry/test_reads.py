"""Records of reads: what a pin leaves, who gathers it, and what the settings of the store change about it."""

from pathlib import Path

import pytest

from cairn.core.canonical import encode
from cairn.core.errors import ConflictError, IntegrityError, NotAllowed, NotFoundError, StorageError
from cairn.core.ids import CheckpointId, ModelId
from cairn.core.limits import READS_PER_ENTRY
from cairn.registry import reads as recorded
from cairn.registry.auditlines import AuditLine, Trail, Wanted
from cairn.registry.entries_audit import Policy, Reads
from cairn.registry.fold_policy import AUDIT_READS, AuditReads, audit_reads
from cairn.registry.logview import LogView
from cairn.registry.pins import Pin, pinned
from cairn.registry.policy import carry_policy, set_policy
from cairn.registry.reads import ReadRecord, ended_reads, gather, open_read, sign_read
from cairn.registry.registry import Registry
from cairn.store.backends.faults import Crash, Fail, FaultyBackend, Stopped
from cairn.store.crypto.objects import ObjectKind, seal_object
from cairn.store.crypto.signing import Identity
from tests.support.logs import LogMaker
from tests.support.stores import Site, commit_tree, tip
from tests.support.trees import write_files
from tests.support.twins import twin_of

Found = tuple[ModelId, CheckpointId]


@pytest.fixture
def found(site: Site, tmp_path: Path) -> Found:
    """Model and checkpoint of a commit."""
    registry = site.registry()
    commit_tree(registry, write_files(tmp_path / "tree", {"a.txt": b"text"}))
    return tip(registry)


def pins(site: Site) -> list[str]:
    """Endings of what lies in the folder of pins."""
    return [listed.name.rpartition(".")[2] for listed in site.backend.list("pins")]


def lines(site: Site) -> list[AuditLine]:
    return Trail(LogView.of(site.open()), Wanted(kinds=("reads",))).lines


def told(site: Site) -> list[ReadRecord]:
    """Reads that the log tells of."""
    return [read for line in lines(site) for read in line.reads]


def read_once(registry: Registry, found: Found) -> None:
    with pinned(registry, *found) as held:
        assert held


# --- From pin to entry -------------------------------------------------------------------------------


def test_a_read_leaves_a_record_that_an_entry_tells_of(site: Site, found: Found) -> None:
    reader = site.registry()
    with pinned(reader, *found):
        assert pins(site) == ["pin"]
    assert pins(site) == ["ended"]
    done = gather(site.registry())
    assert (done.reads, done.entries, done.unreadable) == (1, 1, ())
    assert pins(site) == []
    (read,) = told(site)
    assert (read.model, read.checkpoint, read.actor) == (*found, reader.opened.identity.actor)
    assert read.store == reader.opened.store and read.at > 0


def test_many_reads_are_gathered_into_one_entry(site: Site, found: Found) -> None:
    registry = site.registry()
    for _ in range(5):
        read_once(registry, found)
    before = registry.refresh().length
    assert gather(registry).entries == 1 and registry.state.length == before + 1
    assert len({read.read for read in told(site)}) == 5
    assert gather(registry).entries == 0, "nothing is told twice"


def test_more_reads_than_an_entry_holds_take_several(site: Site, found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "READS_PER_ENTRY", 2)
    registry = site.registry()
    for _ in range(5):
        read_once(registry, found)
    assert gather(registry).entries == 3 and len(told(site)) == 5


def test_a_read_of_what_is_gone_leaves_no_record(site: Site, found: Found) -> None:
    with pytest.raises(NotFoundError):
        Pin(site.registry(), found[0], CheckpointId(bytes(32)))
    assert pins(site) == []


@pytest.mark.parametrize("call", range(1, 6))
def test_a_gathering_that_stops_loses_no_read(site: Site, found: Found, call: int) -> None:
    for _ in range(2):
        read_once(site.registry(), found)
    registry = site.registry()
    stopping = FaultyBackend(site.backend, [Crash(call=call)])
    object.__setattr__(registry.opened, "backend", stopping)
    with pytest.raises(Stopped):
        gather(registry)
    gather(site.registry(cold=True))
    assert len({read.read for read in told(site)}) == 2 and pins(site) == []


@pytest.mark.parametrize(
    ("recording", "call", "left"),
    [(AuditReads.REQUIRED, 1, "pin"), (AuditReads.BEST_EFFORT, None, ""), (AuditReads.BEST_EFFORT, 1, "ended")],
    ids=["it must be kept", "it may be lost", "there is room again"],
)
def test_a_record_that_cannot_be_written(
    site: Site, found: Found, recording: AuditReads, call: int | None, left: str
) -> None:
    """Where it must be kept, the pin stays: whoever gives it up finds the same signed bytes in it."""
    set_policy(site.registry(), AUDIT_READS, recording)
    failing = FaultyBackend(site.backend, [Fail(op="create", name="pins/*.ended", call=call, error=StorageError)])
    Pin(site.registry(failing), *found).release()
    assert pins(site) == [one for one in [left] if one]


# --- What is in it -----------------------------------------------------------------------------------


def test_a_record_names_nobody_but_by_a_key_and_no_machine(site: Site, found: Found) -> None:
    registry = site.registry()
    read_once(registry, found)
    (signed,) = ended_reads(registry.opened)[0].values()
    assert set(ReadRecord.__struct_fields__) == {"read", "store", "model", "checkpoint", "actor", "at"}
    # Ids, a key, a number and a signature: there is no room for anything else.
    assert len(signed) < 300 and str(site.home.state).encode() not in signed


def test_what_is_no_record_is_left_alone_and_named(site: Site, found: Found) -> None:
    registry = site.registry()
    opened = registry.opened
    read_once(registry, found)
    (name,) = [listed.name for listed in site.backend.list("pins")]
    good = site.backend.read(name)
    other = f"pins/{'0' * 32}.ended"
    for bad in (b"", good[:-1], good):
        site.backend.create(other, [bad])
        assert gather(registry).unreadable == (other,)
        site.backend.delete(other)
    record = ReadRecord(bytes(16), opened.store, *found, opened.identity.actor, 1)
    forged = sign_read(record, Identity(bytes(32)))
    with pytest.raises(IntegrityError, match="signature"):
        open_read(forged, opened.store, "a read")
    sealed = seal_object(opened.secrets.k_log, opened.store, ObjectKind.PIN, forged, opened.entropy)
    site.backend.create(other, [sealed])
    assert gather(registry).unreadable == (other,)


def test_a_record_that_nobody_signed_tells_of_no_read(site: Site, found: Found) -> None:
    """Whoever may write entries cannot say that somebody else has read."""
    registry = site.registry()
    record = ReadRecord(bytes(16), registry.opened.store, *found, registry.opened.identity.actor, 1)
    forged = sign_read(record, Identity(bytes(32)))
    registry.append(lambda state: Reads((forged,)))
    assert told(site) == []


# --- Settings ----------------------------------------------------------------------------------------


def read_only(site: Site) -> FaultyBackend:
    return FaultyBackend(site.backend, [Fail(op="create", name="pins/*", error=NotAllowed)])


def test_by_default_a_read_only_mount_is_read_and_it_is_told(site: Site, found: Found) -> None:
    registry = site.registry(read_only(site))
    with pinned(registry, *found) as held:
        assert not held
    assert registry.unrecorded == 1 and pins(site) == []


def test_required_refuses_to_read_what_it_cannot_record(site: Site, found: Found) -> None:
    assert set_policy(site.registry(), AUDIT_READS, AuditReads.REQUIRED)
    registry = site.registry(read_only(site))
    with pytest.raises(NotAllowed, match="recorded"), pinned(registry, *found):
        raise AssertionError("it was read")
    read_once(site.registry(), found)
    assert pins(site) == ["ended"]


def test_off_leaves_nothing(site: Site, found: Found) -> None:
    set_policy(site.registry(), AUDIT_READS, AuditReads.OFF)
    with pinned(site.registry(), *found) as held:
        assert held and pins(site) == ["pin"], "it protects all the same"
    assert pins(site) == []
    registry = site.registry(read_only(site))
    with pinned(registry, *found):
        assert registry.unrecorded == 0


def test_settings_are_kept_and_change_by_entries(site: Site, found: Found) -> None:
    registry = site.registry()
    assert audit_reads(registry.state) is AuditReads.BEST_EFFORT
    assert not set_policy(registry, AUDIT_READS, AuditReads.BEST_EFFORT)
    for value in AuditReads:
        set_policy(registry, AUDIT_READS, value)
        assert audit_reads(site.registry(cold=True).state) is value


def test_a_new_store_of_the_tenant_gets_the_settings(site: Site, tmp_path: Path) -> None:
    source, target = site.registry(), twin_of(site).registry()
    carry_policy(source, target)
    assert target.state.length == 1
    set_policy(source, AUDIT_READS, AuditReads.REQUIRED)
    carry_policy(source, target)
    assert audit_reads(target.state) is AuditReads.REQUIRED
    set_policy(target, AUDIT_READS, AuditReads.OFF)
    carry_policy(source, target)
    assert audit_reads(target.state) is AuditReads.OFF, "a store that has settings keeps them"


# --- The fold ----------------------------------------------------------------------------------------

SIGNED = encode((b"record", bytes(64)))


def test_entries_of_another_form_are_void() -> None:
    log = LogMaker()
    state = log.state(Policy({"audit_reads": "off", "of a later version": "x"}), Reads((SIGNED,)))
    assert state.policy == {"audit_reads": "off", "of a later version": "x"}
    for payload, reason in (
        (Policy({}), "sets nothing"),
        (Policy({"audit_reads": "sometimes"}), "no such value"),
        (Reads(()), "no read"),
        (Reads((SIGNED,) * (READS_PER_ENTRY + 1)), "too many"),
        (Reads((b"x",)), "form"),
        (Reads((encode((b"record", bytes(63))),)), "signature"),
    ):
        before = state.copy()
        assert reason in (log.apply(state, payload) or "")
        assert state.policy == before.policy


def test_a_registry_refuses_what_would_be_void(site: Site) -> None:
    with pytest.raises(ConflictError, match="no such value"):
        site.registry().append(lambda state: Policy({"audit_reads": "never"}))
