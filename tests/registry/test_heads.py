"""The head that a user remembers: a log that was rolled back or replaced is noticed, and nothing else is."""

import json
from contextlib import suppress
from pathlib import Path

import pytest

from cairn.core.canonical import encode
from cairn.core.errors import IntegrityError
from cairn.registry.entries import Abort, Entry, seal_entry
from cairn.registry.localfiles import Head, KeyHome
from cairn.registry.merkle import append_leaf, leaf_hash, root_of
from cairn.registry.registry import Registry
from cairn.store.backends.memory import MemoryBackend
from tests.support.stores import Site, new_site

WARM_OR_COLD = pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])


def grow(site: Site, entries: int) -> Registry:
    registry = site.registry()
    for _ in range(entries):
        registry.append(lambda state: Abort())
    return registry


def head_file(site: Site) -> Path:
    return next(site.home.state.joinpath("heads").iterdir())


def copied(backend: MemoryBackend) -> dict[str, bytes]:
    return {listed.name: backend.read(listed.name) for listed in backend.list()}


def put_back(backend: MemoryBackend, objects: dict[str, bytes]) -> None:
    for listed in list(backend.list()):
        backend.delete(listed.name)
    for name, data in objects.items():
        backend.create(name, [data])


def test_the_head_is_remembered_by_reading_and_by_writing(site: Site) -> None:
    registry = grow(site, 3)
    store = registry.opened.store
    assert site.home.remembered_head(store) == Head(4, registry._replay.root)
    head_file(site).unlink()
    site.registry(cold=True)
    assert site.home.remembered_head(store) == Head(4, registry._replay.root)


@WARM_OR_COLD
@pytest.mark.parametrize("lost", [1, 3])
def test_a_log_that_was_rolled_back_is_noticed(site: Site, cold: bool, lost: int) -> None:
    grow(site, 4)
    for name in site.log()[-lost:]:
        site.backend.delete(name)
    with pytest.raises(IntegrityError, match="rolled back"):
        site.registry(cold=cold)


def test_a_rolled_back_log_is_noticed_by_whoever_has_it_open(site: Site) -> None:
    registry = grow(site, 4)
    for name in site.log()[-2:]:
        site.backend.delete(name)
    with pytest.raises(IntegrityError):
        registry.append(lambda state: Abort())
    assert len(site.log()) == 3


def test_a_rolled_back_log_gets_no_hole_from_a_warm_cache(site: Site) -> None:
    grow(site, 4)
    head_file(site).unlink()
    whole = site.log()
    for name in whole[-2:]:
        site.backend.delete(name)
    # Nobody remembers more, so writing may go on; but where the log ends, not where the cache does.
    with suppress(IntegrityError):
        site.registry().append(lambda state: Abort())
    assert site.log() in (whole[:3], whole[:4])


@pytest.mark.parametrize("entries", [3, 4, 6], ids=["shorter", "as long", "longer"])
@WARM_OR_COLD
def test_a_log_that_was_replaced_is_noticed(site: Site, entries: int, cold: bool) -> None:
    assert isinstance(site.backend, MemoryBackend)
    early = copied(site.backend)
    other = Site(site.backend, site.home, site.source, site.clock, site.entropy)
    grow(site, 4)
    put_back(site.backend, early)
    # Somebody who knows only the early log goes on from there.
    other.home = KeyHome(site.home.data, site.home.state.with_name("state-2"), site.home.cache.with_name("c2"))
    other.home.state.mkdir()
    (other.home.state / "identity.key").write_bytes((site.home.state / "identity.key").read_bytes())
    grow(other, entries)
    with pytest.raises(IntegrityError):
        site.registry(cold=cold).check_writable()


def test_a_longer_log_is_no_replaced_one(site: Site) -> None:
    grow(site, 2)
    before = head_file(site).read_text()
    grow(site, 5)
    head_file(site).write_text(before)
    assert site.registry(cold=True).state.length == 8
    assert json.loads(head_file(site).read_text())["length"] == 8


def test_a_liar_next_to_the_remembered_head_is_no_replacement(site: Site) -> None:
    registry = grow(site, 2)
    before = head_file(site).read_text()
    liar, honest = lie_then_truth(registry)
    site.backend.create("log/00000000/000000000003", [liar])
    site.backend.create("log/00000000/000000000004", [honest])
    head_file(site).write_text(before)
    state = site.registry(cold=True).state
    assert ([void.n for void in state.voids], state.damaged_from, state.length) == ([3], None, 5)


def lie_then_truth(registry: Registry) -> tuple[bytes, bytes]:
    """Entries 3 and 4 of the owner: one with a wrong root, and one that agrees with all bytes."""
    opened, frontier = registry.opened, registry.state.frontier

    def entry(n: int, root: bytes) -> bytes:
        fields = Entry(
            1, opened.tenant, opened.store, n, root, "abort", opened.identity.actor, bytes(16), 0, encode(Abort())
        )
        return seal_entry(fields, opened.identity, opened.secrets.k_log, opened.entropy)

    liar = entry(3, b"\xee" * 32)
    return liar, entry(4, root_of(append_leaf(frontier, 3, leaf_hash(liar))))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"length": "x", "root": ""}', '{"length": 3, "root": "zz"}', "\x00\xff"]
)
def test_a_memory_that_cannot_be_read_is_no_memory(site: Site, text: str) -> None:
    grow(site, 2)
    head_file(site).write_text(text)
    assert site.registry().state.length == 3


def test_memory_never_goes_back(site: Site) -> None:
    registry = grow(site, 3)
    store, head = registry.opened.store, Head(4, registry._replay.root)
    site.home.remember_head(store, Head(2, bytes(32)))
    assert site.home.remembered_head(store) == head


def test_no_memory_can_be_kept_where_the_state_folder_is_a_file(tmp_path: Path) -> None:
    site = new_site(tmp_path / "home")
    grow(site, 1)
    head_file(site).unlink()
    site.home.state.joinpath("heads").rmdir()
    site.home.state.joinpath("heads").write_text("in the way")
    assert site.registry().state.length == 2
    grow(site, 1)
