"""Creating and opening stores: whose key, which format, and what is damaged."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3

from cairn.core.errors import (
    CairnError,
    GoneError,
    IntegrityError,
    NewerFormat,
    NotAllowed,
    NotAStore,
    ObjectExists,
    WrongKey,
)
from cairn.registry.entries import Abort
from cairn.registry.opened import KeySource, create_store, open_store
from cairn.registry.registry import Registry
from cairn.store.backends.memory import MemoryBackend
from cairn.store.crypto.keyfile import dump_key_file
from cairn.store.crypto.provider import RootKey
from tests.support.stores import Site, commit_tree, home_in, new_site
from tests.support.trees import write_files


def replaced(site: Site, name: str, data: bytes | None) -> None:
    site.backend.delete(name)
    if data is not None:
        site.backend.create(name, [data])


def key_of(site: Site) -> Path:
    key_file = site.open().key_file
    assert key_file is not None
    return key_file


def test_a_new_store_opens_with_the_key_file_that_was_written(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    backend = MemoryBackend()
    made, key_file = create_store(backend, home, KeySource())
    assert key_file == home.key_file(made.store)
    assert key_file.stat().st_mode & 0o777 == 0o600
    opened = open_store(backend, home, KeySource())
    assert (opened.store, opened.tenant, opened.secrets) == (made.store, made.tenant, made.secrets)
    assert Registry(opened).state.owners[0] == made.identity.actor


def test_opening_writes_nothing_into_the_store(site: Site) -> None:
    before = site.names()
    site.registry(cold=True)
    assert site.names() == before


def test_a_store_is_not_made_where_something_is(site: Site) -> None:
    before = site.names()
    with pytest.raises(ObjectExists):
        create_store(site.backend, site.home, KeySource())
    assert site.names() == before


def test_a_key_file_is_not_overwritten(tmp_path: Path) -> None:
    key = tmp_path / "my.key"
    key.write_text("precious")
    with pytest.raises(ObjectExists):
        create_store(MemoryBackend(), home_in(tmp_path / "home"), KeySource(key_file=key))
    assert key.read_text() == "precious"


def test_no_key_a_wrong_key_and_a_damaged_key_are_told_apart(site: Site, tmp_path: Path) -> None:
    other = new_site(tmp_path / "other", seed=9)
    with pytest.raises(NotAllowed, match="no key file") as caught:
        open_store(site.backend, other.home, KeySource())
    assert not isinstance(caught.value, WrongKey)
    with pytest.raises(WrongKey, match="belongs to store"):
        open_store(site.backend, site.home, KeySource(key_file=key_of(other)))
    (tmp_path / "forged").write_bytes(dump_key_file(site.open().store, RootKey(0, bytes(32))))
    with pytest.raises(WrongKey, match="another root key"):
        open_store(site.backend, site.home, KeySource(key_file=tmp_path / "forged"))
    (tmp_path / "broken").write_bytes(key_of(site).read_bytes()[:-20])
    with pytest.raises(IntegrityError, match="damaged"):
        open_store(site.backend, site.home, KeySource(key_file=tmp_path / "broken"))
    with pytest.raises(NotAllowed, match="cannot be read"):
        open_store(site.backend, site.home, KeySource(key_file=tmp_path))


def test_a_passphrase_opens_from_anywhere_and_a_wrong_one_does_not(tmp_path: Path) -> None:
    site = new_site(tmp_path / "home", passphrase="correct horse")
    assert not site.home.data.exists()
    away = home_in(tmp_path / "away")
    assert open_store(site.backend, away, KeySource(passphrase="correct horse")).secrets == site.open().secrets
    asked = open_store(site.backend, away, KeySource(ask=lambda: "correct horse"))
    assert asked.store == site.open().store
    with pytest.raises(WrongKey):
        open_store(site.backend, away, KeySource(passphrase="wrong horse"))
    for source in (KeySource(), KeySource(ask=lambda: None)):
        with pytest.raises(NotAllowed, match="passphrase"):
            open_store(site.backend, away, source)


# --- The format record ------------------------------------------------------------------------


def forged_format(site: Site, **changes: object) -> bytes:
    fields = {**json.loads(site.backend.read("format")), **changes}
    del fields["check"]
    fields["check"] = blake3(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:32]
    return (json.dumps(fields) + "\n").encode()


def test_where_there_is_no_record_there_is_no_store(site: Site) -> None:
    replaced(site, "format", None)
    with pytest.raises(NotAStore):
        site.open()


def test_each_bit_of_the_format_record_counts(site: Site) -> None:
    whole = site.backend.read("format")
    for at in range(len(whole)):
        replaced(site, "format", whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        with pytest.raises(IntegrityError):
            site.open()
    for defect in (b"", whole[:-1], whole + b" ", whole * 2, b"[]", b"null", b'"x"', b"{" * 100_000):
        replaced(site, "format", defect)
        with pytest.raises(IntegrityError):
            site.open()


def test_a_newer_format_is_told_from_damage(site: Site) -> None:
    replaced(site, "format", forged_format(site, **{"cairn store": 2}))
    with pytest.raises(NewerFormat):
        site.open()


@pytest.mark.parametrize(
    "change", [{"store": "00"}, {"tenant": ""}, {"store": "zz"}, {"tenant": None}, {"store": 5}], ids=str
)
def test_a_record_with_impossible_ids_is_damaged(site: Site, change: dict[str, object]) -> None:
    replaced(site, "format", forged_format(site, **change))
    with pytest.raises(IntegrityError):
        site.open()


@pytest.mark.parametrize("field", ["store", "tenant"])
def test_a_record_that_names_another_store_or_tenant_opens_nothing(site: Site, field: str) -> None:
    replaced(site, "format", forged_format(site, **{field: "ab" * 16}))
    with pytest.raises(CairnError):
        site.registry(cold=True)


# --- Wraps ------------------------------------------------------------------------------------


def test_a_lost_or_damaged_wrap_of_the_store_is_damage(site: Site) -> None:
    (name,) = [name for name in site.names() if name.startswith("keys/store/")]
    whole = site.backend.read(name)
    for at in range(0, len(whole), 7):
        replaced(site, name, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(IntegrityError):
            site.open()
    replaced(site, name, None)
    with pytest.raises(IntegrityError, match="lost the wrap"):
        site.open()


def test_a_lost_wrap_of_a_model_is_gone_and_a_damaged_one_damage(site: Site, tmp_path: Path) -> None:
    registry = site.registry()
    result = commit_tree(registry, write_files(tmp_path / "tree", {"a": b"x"}))
    other = commit_tree(registry, tmp_path / "tree", "other")
    wraps = {
        result.model: registry.state.models[result.model].wrap,
        other.model: registry.state.models[other.model].wrap,
    }
    whole = site.backend.read(wraps[result.model])
    replaced(site, wraps[result.model], whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(IntegrityError, match="damaged"):
        site.registry().model_keys(result.model)
    replaced(site, wraps[result.model], site.backend.read(wraps[other.model]))
    with pytest.raises(IntegrityError, match="in its place"):
        site.registry().model_keys(result.model)
    replaced(site, wraps[result.model], None)
    with pytest.raises(GoneError, match="gone"):
        site.registry().model_keys(result.model)
    assert site.registry().model_keys(other.model)


# --- The identity -----------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "zz", "ab", "00" * 31, "00" * 33, "\x00\xff"])
def test_a_damaged_identity_is_an_error_of_ours(site: Site, text: str) -> None:
    (site.home.state / "identity.key").write_text(text)
    with pytest.raises(CairnError, match=r"identity\.key"):
        site.open()


def test_somebody_without_a_right_reads_and_is_told_before_he_uploads(site: Site, tmp_path: Path) -> None:
    tree = write_files(tmp_path / "tree", {"a": b"x"})
    commit_tree(site.registry(), tree)
    stranger = replace(site, home=replace(site.home, state=tmp_path / "elsewhere"))
    registry = stranger.registry(cold=True)
    assert registry.state.models
    # Holders of the root key are owners; a right that the fold does not know is none.
    registry.state.owners[:] = [b"x" * 32]
    before = site.names()
    for attempt in (lambda: commit_tree(registry, tree, step=2), lambda: registry.append(lambda state: Abort())):
        with pytest.raises(NotAllowed):
            attempt()
    assert site.names() == before


def test_a_key_file_is_enough_to_go_on_where_the_identity_is_lost(site: Site, tmp_path: Path) -> None:
    tree = write_files(tmp_path / "tree", {"a": b"x"})
    first = commit_tree(site.registry(), tree)
    elsewhere = replace(site, home=replace(site.home, state=tmp_path / "elsewhere"))
    registry = elsewhere.registry(cold=True)
    second = commit_tree(registry, tree, step=2)
    checkpoints = site.registry().state.models[second.model].checkpoints
    founder, recovery = registry.state.owners
    assert [checkpoints[one.checkpoint].actor for one in (first, second)] == [founder, recovery]
