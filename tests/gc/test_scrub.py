"""What a scrub says of stores that are whole, that hold leftovers, second copies, or the work of a faulty writer."""

import random
from pathlib import Path
from typing import Any

import pytest

from cairn.core.errors import NotAllowed, NotAStore, WrongKey
from cairn.core.ids import ContentId
from cairn.core.limits import LOG_ENTRY_BYTES_MAX
from cairn.gc.scrub import verify
from cairn.gc.scrub_open import verify_store
from cairn.registry import publish as publishing
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.entries import Abort
from cairn.registry.indexing import locations_of
from cairn.registry.names import entry_name
from cairn.registry.opened import KeySource
from cairn.registry.registry import Registry
from cairn.registry.session import Session
from cairn.store import chunkstore
from cairn.store.backends.faults import Crash, Fail, FaultyBackend, Stopped
from cairn.store.backends.memory import MemoryBackend
from cairn.store.crypto.components import ComponentClass
from cairn.store.index import PackRef, PieceEntry, encode_piece
from cairn.workspace.commit import Draft
from tests.gc.gallery import Gallery, flipped, named
from tests.support.stores import Site, commit_tree, home_in, new_site
from tests.support.trees import write_files


@pytest.mark.parametrize("full", [False, True], ids=["quick", "full"])
@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_whole_store_is_whole(gallery: Gallery, full: bool, cold: bool) -> None:
    report = gallery.verify(full, cold)
    assert report.ok and report.errors == () and report.notes == ()
    assert (report.checkpoints, report.full) == (3, full)
    # Two tiles of 1 MiB each and more of `big`, the other tensors, blocks of files, and two pages a checkpoint.
    assert report.chunks > 10
    assert report.chunks_opened == (report.chunks if full else 0) and report.chunks_unnamed == 0
    assert (report.leftover_objects, report.leftover_bytes) == (1, len(b"half a pack"))


def test_an_empty_store_is_whole(site: Site) -> None:
    report = verify(site.registry(), full=True)
    assert report.ok and (report.checkpoints, report.chunks) == (0, 0)


def test_a_full_scrub_reads_every_chunk_and_a_quick_one_none(gallery: Gallery) -> None:
    sizes = {name: gallery.site.backend.size(name) for name in gallery.objects(".pack")}
    quick, full = (FaultyBackend(gallery.site.backend) for _ in range(2))
    verify(gallery.site.registry(quick), full=False)
    report = verify(gallery.site.registry(full), full=True)
    assert not [call for call in quick.calls if call.op == "read_into"]
    assert {call.name for call in full.calls if call.op == "read_into"} == sizes.keys()
    assert sum(sizes.values()) * 0.99 < report.bytes_read < sum(sizes.values())


def test_a_scrub_writes_nothing_into_the_store(gallery: Gallery) -> None:
    recorder = FaultyBackend(gallery.site.backend)
    verify(gallery.site.registry(recorder), full=True)
    assert {call.op for call in recorder.calls} <= {"read", "read_into", "size", "list", "folders"}


def test_leftovers_of_an_interrupted_commit_are_counted_and_are_no_error(gallery: Gallery, tmp_path: Path) -> None:
    tree = write_files(tmp_path / "more", {"new.bin": random.Random(9).randbytes(300_000)})
    crashing = FaultyBackend(gallery.site.backend, [Crash(op="create", name="log/*")])
    with pytest.raises(Stopped):
        commit_tree(gallery.site.registry(crashing), tree, "first", step=3)
    report = gallery.verify()
    assert report.ok and report.checkpoints == 3
    # Two packs (content, pages), piece, root, body and list, beside the gallery's own leftover.
    assert report.leftover_objects == 1 + 6
    assert report.leftover_bytes > 300_000


def test_another_copy_serves(gallery: Gallery, tmp_path: Path) -> None:
    tree = write_files(tmp_path / "one", {"x.bin": random.Random(9).randbytes(200_000)})
    registry = gallery.site.registry()
    first = commit_tree(registry, tree, "copies", step=1)
    name = _pack_of(registry, first.checkpoint, 200_000)
    with gallery.replaced(name, flipped(gallery.site.backend.read(name)[:-200], random.Random(3)) + b"\0" * 200):
        assert not verify(registry, full=True).ok
        again = commit_tree(registry, tree, "copies", step=2, always=True)
        assert again.counts.bytes_new == 200_000, "bad bytes must not be deduplicated against"
    whole = gallery.site.backend.read(name)
    with gallery.replaced(name, whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:]):
        report = verify(registry, full=True)
        assert report.ok, "a better copy serves"
        problems = [one for one in report.superseded if one.object == name]
        assert {one.checkpoint for one in problems} == {first.checkpoint.hex(), again.checkpoint.hex()}
        assert all("another copy serves, so nothing is lost" in one.what for one in problems)
        gallery.check_checkouts(report, must_fail=False)


def test_marks_follow_the_bytes(gallery: Gallery) -> None:
    registry = gallery.site.registry()
    number = max(range(registry.state.pack_count), key=lambda n: registry.state.pack(n).size)
    name = registry.state.pack(number).name
    data = gallery.site.backend.read(name)
    with gallery.replaced(name, data[:20_000] + bytes([data[20_000] ^ 1]) + data[20_001:]):
        report = verify(registry, full=True)
    assert {pack for _, pack in _marked(registry)} == {number} and not report.ok
    assert verify(registry, full=False).ok
    assert _marked(registry), "only a scrub that has read the bytes says that they are good again"
    assert verify(registry, full=True).ok
    assert not _marked(registry)


def test_a_file_that_cannot_be_read_is_a_problem_of_that_file_alone(gallery: Gallery) -> None:
    names = [*gallery.objects(".pack"), *(gallery.objects(ending)[0] for ending in (".body", ".index", ".reach"))]
    for name in names:
        broken = FaultyBackend(gallery.site.backend, [Fail(name=name)])
        report = verify(gallery.site.registry(broken), full=True)
        assert {one.object for one in report.errors} == {name}


def test_a_bad_sector_costs_one_chunk(gallery: Gallery) -> None:
    registry = gallery.site.registry()
    number = max(range(registry.state.pack_count), key=lambda n: registry.state.pack(n).size)
    name = registry.state.pack(number).name
    broken = FaultyBackend(gallery.site.backend, [Fail(op="read_into", name=name, call=1)])
    assert verify(gallery.site.registry(broken), full=True).ok, "what fails as a range is read again chunk by chunk"
    broken = FaultyBackend(gallery.site.backend, [Fail(op="read_into", name=name, call=at) for at in (1, 2)])
    report = verify(gallery.site.registry(broken), full=True)
    assert {one.object for one in report.errors} == {name}
    assert all("cannot be read (byte 8)" in one.what for one in report.errors)


def test_what_is_lost_is_named(gallery: Gallery) -> None:
    registry = gallery.site.registry()
    number = max(range(registry.state.pack_count), key=lambda n: registry.state.pack(n).size)
    with gallery.replaced(name := registry.state.pack(number).name, None):
        report = gallery.verify(full=False)
    lost = [one.what for one in named(report, name) if one.checkpoint]
    assert len(lost) == 3 and all("big" in what for what in lost)
    assert all("model.safetensors" in what or "m.safetensors" in what for what in lost)
    assert report.names and set(report.names.values()) == {"first", "other"}


def test_a_lost_page_names_the_tensors_that_files_ask_for(gallery: Gallery) -> None:
    registry = gallery.site.registry()
    packs = {}
    for model, checkpoint in gallery.trees:
        manifest = CheckpointManifest(registry, model, checkpoint)
        of = {component: manifest.page_digests(component) for component in manifest.components}
        ids = {c: {registry.opened.keys.page.content_id(digest) for digest in pages} for c, pages in of.items()}
        places = {c: {registry.index().locations(one)[0].pack for one in some} for c, some in ids.items()}
        if places.get(ComponentClass.WEIGHTS, set()).isdisjoint(places[ComponentClass.FILES]):
            packs.update(dict.fromkeys(places.get(ComponentClass.WEIGHTS, ()), checkpoint))
    assert packs, "no checkpoint has its tensors' page apart from its files' page"
    number, checkpoint = next(iter(packs.items()))
    with gallery.replaced(name := registry.state.pack(number).name, None):
        report = gallery.verify()
    (what,) = [one.what for one in named(report, name) if one.checkpoint == checkpoint.hex()]
    assert "of weights" in what and "tensors " in what and "file model.safetensors" in what


def test_an_index_of_this_machine_that_lags_behind_is_noted(gallery: Gallery) -> None:
    registry = gallery.site.registry()
    state = registry.state
    fold = registry.cache.fold()
    assert fold is not None
    registry.cache.clear()
    registry.cache.advance(-1, fold.position, fold.fold, [])
    report = verify(gallery.site.registry(), full=False)
    assert report.ok and len(report.notes) == 1
    assert str(gallery.site.home.cache) in report.notes[0] and f"lacks {report.chunks} chunks" in report.notes[0]
    assert state.length == fold.position + 1


# --- The work of a faulty writer: every byte is authentic, and yet it does not fit. ------------


def test_a_list_that_lacks_an_id_is_found(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short_of_one(registry: Registry, session: Session, draft: Draft) -> object:
        draft.reachable.remove(min(draft.reachable))
        return publishing.publish(registry, session, draft)

    monkeypatch.setattr("cairn.workspace.commit.publish", short_of_one)
    commit_tree(site.registry(), write_files(tmp_path / "t", {"a": b"x" * 5000 + b"y"}))
    report = verify(site.registry(), full=True)
    (problem,) = report.errors
    assert problem.object == site.names(".reach")[0] and "lacks 1 ids" in problem.what


def test_a_piece_that_lacks_an_id_is_found(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short_of_one(packs: list[PackRef], entries: list[PieceEntry]) -> bytes:
        return encode_piece(packs, [entry for entry in entries if entry.length < 5000])

    monkeypatch.setattr("cairn.registry.publish.encode_piece", short_of_one)
    commit_tree(site.registry(), write_files(tmp_path / "t", {"some file": random.Random(9).randbytes(6000)}))
    report = verify(site.registry(), full=True)
    by_object = {one.object: one.what for one in report.errors}
    assert "other chunks than the footer" in by_object[site.names(".index")[0]]
    assert "some file" in by_object[site.names(".reach")[0]]


def test_a_chunk_that_belies_its_digest_is_found(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = chunkstore.seal_into

    def lying(*arguments: Any) -> int:
        *before, encoded, target, entropy = arguments
        wrong = bytes(reversed(bytes(encoded)))
        return honest(*before, wrong, target, entropy)

    with monkeypatch.context() as patched:
        patched.setattr(chunkstore, "seal_into", lying)
        patched.setattr(chunkstore.ChunkWriter, "_check_samples", lambda self, sealed: None)
        commit_tree(site.registry(), write_files(tmp_path / "t", {"liar": random.Random(9).randbytes(6000)}))
    report = verify(site.registry(), full=True)
    assert not report.ok and any("its writer was faulty" in one.what for one in report.errors)


# --- Keys -----------------------------------------------------------------------------------------


def test_every_byte_of_a_root_record_counts(tmp_path: Path) -> None:
    site = new_site(tmp_path, passphrase="open sesame")
    (name,) = site.names("keys/root/" + site.open().store.hex())
    data = site.backend.read(name)
    spaces = [at for at, byte in enumerate(data) if byte in b" \n"]
    for at, byte in [(spaces[0], 0x09), (spaces[-1], 0x20), (len(data) // 2, data[len(data) // 2] ^ 1)]:
        changed = MemoryBackend()
        for listed in site.backend.list():
            whole = site.backend.read(listed.name)
            changed.create(listed.name, [data[:at] + bytes([byte]) + data[at + 1 :] if listed.name == name else whole])
        report = verify_store(changed, site.home, site.source, full=False)
        assert [one.object for one in report.errors] == [name], f"byte {at}"
    site.backend.delete(name)
    report = verify_store(site.backend, site.home, site.source, full=False)
    assert [one.object for one in report.errors] == [name]


def test_what_is_no_damage_is_raised(gallery: Gallery, tmp_path: Path) -> None:
    site = gallery.site
    with pytest.raises(NotAStore):
        verify_store(MemoryBackend(), site.home, site.source, full=False)
    with pytest.raises(NotAllowed):
        verify_store(site.backend, home_in(tmp_path / "stranger"), site.source, full=False)
    other = new_site(tmp_path / "other", seed=1)
    key = other.home.key_file(other.open().store)
    with pytest.raises(WrongKey):
        verify_store(site.backend, site.home, KeySource(key), full=False)


def _marked(registry: Registry) -> set[tuple[ContentId, int]]:
    """Places that the machine's index avoids."""
    index, found = registry.index(), set()
    for piece in registry.state.pieces:
        for identifier, at in locations_of(registry.opened, registry.state, piece)[0]:
            if at not in index.locations(identifier):
                found.add((identifier, at.pack))
    return found


def _pack_of(registry: Registry, checkpoint: bytes, size: int) -> str:
    """The newest pack of about a size."""
    packs = [registry.state.pack(n) for n in range(registry.state.pack_count)]
    return [pack.name for pack in packs if size < pack.size < size + 1000][-1]


def test_an_entry_of_any_length_is_void_and_no_damage(site: Site) -> None:
    """Its leaf is the hash of all its bytes, to a scrub as to whoever appends behind it."""
    site.backend.create(entry_name(1), [bytes(LOG_ENTRY_BYTES_MAX + 5)])
    registry = site.registry(cold=True)
    registry.append(lambda state: Abort())
    report = verify(registry, full=False)
    assert report.ok, report.errors
    assert "entry 1: it is over the size limit" in report.notes[0]
