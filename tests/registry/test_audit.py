"""What a verification of the log finds, and what the next command of a client finds that has seen the newer head."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cairn.core.canonical import encode
from cairn.core.errors import IntegrityError
from cairn.registry.audit import Audit, KnownHead, compare_fold, verify_log
from cairn.registry.entries import FORMAT, Abort, Entry, ModelCreate, seal_entry
from cairn.registry.localfiles import Head
from cairn.registry.logview import LogView, WholeLog
from cairn.registry.merkle import append_leaf, leaf_hash, root_of
from cairn.registry.models import ensure_model
from cairn.registry.names import entry_name
from cairn.registry.registry import Registry
from cairn.store.backends.faults import Fail, FaultyBackend
from cairn.store.crypto.signing import Identity
from tests.support.longlogs import put
from tests.support.stores import Site

LENGTH = 8
# Changes the log of a site, and returns the positions that it touched.
Manipulation = Callable[[Site], set[int]]


@pytest.fixture
def grown(site: Site) -> Site:
    """A log of eight entries, whose head this user has seen."""
    registry = site.registry()
    ensure_model(registry, "m")
    while registry.state.length < LENGTH:
        registry.append(lambda state: Abort())
    registry.close()
    return site


def view_of(site: Site) -> LogView:
    return LogView.of(site.open())


def audited(site: Site, *heads: Head, accepted: tuple[int, ...] = ()) -> Audit:
    """Verify as `cairn audit verify` does: with what this user remembers, and with heads by hand."""
    opened = site.open()
    remembered = site.home.remembered_head(opened.store)
    known = [KnownHead(head, "somebody") for head in heads]
    if remembered is not None:
        known.append(KnownHead(remembered, "this user's memory"))
    return verify_log(LogView.of(opened), known, accepted)


def kinds(audit: Audit) -> set[tuple[str, int | None]]:
    return {(one.kind, one.entry) for one in audit.findings}


def head_of(site: Site) -> Head:
    return WholeLog(view_of(site)).head


def foreign_entry(site: Site, signer: Identity, k_log: bytes | None = None) -> bytes:
    """An entry behind the log that is in order but for who signed it, or under which key."""
    opened, whole = site.open(), WholeLog(view_of(site))
    entry = Entry(
        1, opened.tenant, opened.store, whole.head.length, whole.head.root, "abort", signer.actor, bytes(16), 5,
        encode(Abort()),
    )  # fmt: skip
    return seal_entry(entry, signer, k_log or opened.secrets.k_log, opened.entropy)


# --- In order --------------------------------------------------------------------------------------


def test_a_log_in_order_is_intact(grown: Site) -> None:
    early = Head(3, WholeLog(view_of(grown), {3}).roots[3])
    audit = audited(grown, early)
    assert audit.ok and audit.whole and audit.head.length == LENGTH and len(audit.heads) == 2
    audit.require_whole()


def test_it_looks_at_entries_only(grown: Site) -> None:
    """No cache, bundle or snapshot is read."""
    hidden = FaultyBackend(grown.backend, [])
    verify_log(LogView.of(grown.open(hidden, cold=True)))
    assert {call.name.split("/")[0] for call in hidden.calls} <= {"log", "format", "keys"}


def test_what_a_slot_lost_by_the_rules_is_no_finding(grown: Site) -> None:
    registry = grown.registry()
    model = next(iter(registry.state.models))
    wrong = registry.state.models[model].name_tag
    opened = registry.opened
    payload = ModelCreate(bytes(16), wrong, b"", (), "keys/model/x")
    entry = Entry(
        FORMAT, opened.tenant, opened.store, LENGTH, root_of(registry.state.frontier), "model.create",
        opened.identity.actor, bytes(16), 5, encode(payload),
    )  # fmt: skip
    grown.backend.create(entry_name(LENGTH), [seal_entry(entry, opened.identity, opened.secrets.k_log, opened.entropy)])
    audit = audited(grown)
    assert audit.ok and [void.n for void in audit.voids] == [LENGTH]
    assert grown.registry().foreign() == []


# --- The four manipulations --------------------------------------------------------------------------


def alter(n: int) -> Manipulation:
    def change(site: Site) -> set[int]:
        data = site.backend.read(entry_name(n))
        put(site, entry_name(n), data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])
        return {n}

    return change


def remove(n: int) -> Manipulation:
    def change(site: Site) -> set[int]:
        site.backend.delete(entry_name(n))
        return {n}

    return change


def swap(n: int, m: int) -> Manipulation:
    def change(site: Site) -> set[int]:
        one, other = site.backend.read(entry_name(n)), site.backend.read(entry_name(m))
        put(site, entry_name(n), other)
        put(site, entry_name(m), one)
        return {n, m}

    return change


MANIPULATIONS = [
    pytest.param(alter(4), ("altered", 4), id="altered"),
    pytest.param(alter(LENGTH - 1), ("altered", LENGTH - 1), id="last altered"),
    pytest.param(remove(4), ("missing", 4), id="removed"),
    pytest.param(swap(4, 5), ("moved", 4), id="reordered"),
    pytest.param(swap(4, LENGTH - 1), ("moved", LENGTH - 1), id="last reordered"),
]


@pytest.mark.parametrize(("manipulate", "found"), MANIPULATIONS)
def test_a_manipulated_log_is_named(grown: Site, manipulate: Manipulation, found: tuple[str, int]) -> None:
    manipulate(grown)
    audit = audited(grown)
    assert found in kinds(audit) and not audit.whole
    with pytest.raises(IntegrityError, match="cannot be vouched for"):
        audit.require_whole()


@pytest.mark.parametrize(("manipulate", "found"), MANIPULATIONS)
def test_the_next_command_of_a_client_without_a_cache_tells(
    grown: Site, manipulate: Manipulation, found: tuple[str, int]
) -> None:
    """It reads on, with a warning that names the damage, or refuses; it never writes."""
    manipulate(grown)
    with pytest.raises(IntegrityError):
        _tells(grown.registry(cold=True))


@pytest.mark.parametrize(("manipulate", "found"), MANIPULATIONS)
def test_the_next_command_of_a_client_with_a_cache_tells(
    grown: Site, manipulate: Manipulation, found: tuple[str, int]
) -> None:
    """One that only reads goes on, names it, and is not misled; one that writes is refused."""
    refs = {model: held.refs for model, held in grown.registry().state.models.items()}
    touched = manipulate(grown)
    registry = grown.registry()
    assert registry.state.damaged_from in touched
    assert {model: held.refs for model, held in registry.state.models.items()} == refs
    with pytest.raises(IntegrityError):
        _tells(registry)


@pytest.mark.parametrize("n", [1, 4, LENGTH - 2])
def test_a_client_with_a_cache_writes_nothing_where_an_entry_was_removed(grown: Site, n: int) -> None:
    grown.backend.delete(entry_name(n))
    with pytest.raises(IntegrityError, match=f"entry {n} is missing"):
        grown.registry().append(lambda state: Abort())
    assert len(grown.log()) == LENGTH - 1


def _tells(registry: Registry) -> None:
    """Reading goes on only with `damaged_from` set, of which the command line warns."""
    assert registry.state.damaged_from is not None
    registry.check_writable()


def test_a_reordered_log_is_told_by_what_stands_where(grown: Site) -> None:
    swap(4, 6)(grown)
    told = {one.entry: one.what for one in audited(grown).findings if one.kind == "moved"}
    assert "signed as entry 6" in told[4] and "signed as entry 4" in told[6]


# --- Entries of foreigners ---------------------------------------------------------------------------


@pytest.mark.parametrize("has_key", [True, False], ids=["with the log's key", "without"])
@pytest.mark.parametrize("later", [False, True], ids=["newest", "with entries behind"])
def test_an_entry_of_a_foreigner_is_named(grown: Site, has_key: bool, later: bool) -> None:
    stranger = Identity.generate(grown.entropy)
    grown.backend.create(entry_name(LENGTH), [foreign_entry(grown, stranger, None if has_key else bytes(32))])
    if later:
        writer = grown.registry(cold=True)
        assert writer.foreign() == [LENGTH], "the next command tells of it"
        writer.append(lambda state: Abort())
    elif not has_key:
        assert grown.registry().foreign() == [LENGTH]
    audit = audited(grown)
    # The newest one that does not open may as well have been altered.
    kind = "foreign" if has_key or later else "altered"
    assert kinds(audit) == {(kind, LENGTH)}
    assert audit.whole == (kind == "foreign")
    assert grown.registry().foreign() == ([] if later or not has_key else [LENGTH]), "it tells once"
    assert audited(grown, accepted=(LENGTH,)).ok == (kind == "foreign")


def test_a_liar_among_the_owners_is_named(grown: Site) -> None:
    opened, whole = grown.open(), WholeLog(view_of(grown))

    def entry(n: int, root: bytes) -> bytes:
        fields = Entry(
            1, opened.tenant, opened.store, n, root, "abort", opened.identity.actor, bytes(16), 5, encode(Abort())
        )
        return seal_entry(fields, opened.identity, opened.secrets.k_log, opened.entropy)

    frontier: tuple[bytes, ...] = ()
    liar = entry(LENGTH, b"\xee" * 32)
    for size, leaf in enumerate([*whole.leaves, leaf_hash(liar)]):
        frontier = append_leaf(frontier, size, leaf)
    grown.backend.create(entry_name(LENGTH), [liar])
    assert not audited(grown).whole, "until somebody speaks for the bytes, they may be damage"
    grown.backend.create(entry_name(LENGTH + 1), [entry(LENGTH + 1, root_of(frontier))])
    assert kinds(audited(grown)) == {("foreign", LENGTH)}


# --- Rolled back, forked -----------------------------------------------------------------------------


def test_a_log_that_was_rolled_back_is_named(grown: Site) -> None:
    for n in (LENGTH - 1, LENGTH - 2):
        grown.backend.delete(entry_name(n))
    assert kinds(audited(grown)) == {("rolled back", None)}
    with pytest.raises(IntegrityError, match="rolled back"):
        grown.registry()


def test_without_a_head_a_shorter_log_is_in_order(grown: Site) -> None:
    head = head_of(grown)
    (grown.home.state / "heads" / grown.open().store.hex()).unlink()
    grown.backend.delete(entry_name(LENGTH - 1))
    assert audited(grown).ok
    assert kinds(audited(grown, head)) == {("rolled back", None)}, "a head that was kept elsewhere tells"


def test_a_log_that_went_another_way_is_named(grown: Site) -> None:
    """Somebody with all rights goes on from an older copy: everything opens, and only heads tell."""
    cut = [grown.backend.read(entry_name(n)) for n in (LENGTH - 2, LENGTH - 1)]
    (grown.home.state / "heads" / grown.open().store.hex()).rename(grown.home.state / "kept")
    for n in (LENGTH - 2, LENGTH - 1):
        grown.backend.delete(entry_name(n))
    other = grown.registry(cold=True)
    while other.state.length < LENGTH + 2:
        other.append(lambda state: Abort())
    (grown.home.state / "kept").rename(grown.home.state / "heads" / other.opened.store.hex())
    assert cut != [grown.backend.read(entry_name(n)) for n in (LENGTH - 2, LENGTH - 1)]
    assert kinds(audited(grown)) == {("forked", None)}
    for cold in (False, True):
        with pytest.raises(IntegrityError, match=r"replaced|rolled back"):
            grown.registry(cold=cold).check_writable()


def test_an_entry_that_an_owner_replaced_contradicts_what_comes_after(grown: Site) -> None:
    opened, whole = grown.open(), WholeLog(view_of(grown), {4})
    entry = Entry(
        1, opened.tenant, opened.store, 4, whole.roots[4], "abort", opened.identity.actor, bytes(16), 6, encode(Abort())
    )
    put(grown, entry_name(4), seal_entry(entry, opened.identity, opened.secrets.k_log, opened.entropy))
    audit = audited(grown)
    assert {kind for kind, _ in kinds(audit)} == {"contradicted", "forked"} and not audit.whole


# --- Storage, and what this machine made of it -------------------------------------------------------


def test_an_entry_that_cannot_be_read_is_named(grown: Site) -> None:
    faulty = FaultyBackend(grown.backend, [Fail(op="read", name=entry_name(4))])
    audit = verify_log(LogView.of(grown.open(faulty)))
    assert ("altered", 4) in kinds(audit) and audit.head.length == LENGTH


def test_many_missing_entries_are_counted(grown: Site) -> None:
    registry = grown.registry()
    while registry.state.length < 120:
        registry.append(lambda state: Abort())
    for n in range(5, 115):
        grown.backend.delete(entry_name(n))
    found = [one for one in audited(grown).findings if one.kind == "missing"]
    assert len(found) == 101 and "110 entries" in found[-1].what


def test_a_fold_that_differs_from_the_entries_is_named(grown: Site, tmp_path: Path) -> None:
    registry, audit = grown.registry(), audited(grown)
    compare_fold(audit, registry.state, "the cache")
    assert audit.ok
    lied = registry.state.copy()
    next(iter(lied.models.values())).refs.clear()
    lied.models.popitem()
    compare_fold(audit, lied, "the cache")
    assert kinds(audit) == {("folded", None)}
