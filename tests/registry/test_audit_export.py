"""Exports of the log, checked by a second verifier that imports nothing of Cairn."""

import json
from base64 import b64encode
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature

from cairn.core.errors import DestinationExists, IntegrityError
from cairn.registry.audit import KnownHead
from cairn.registry.auditexport import Export, Exported
from cairn.registry.localfiles import Head
from cairn.registry.logview import LogView
from cairn.registry.models import ensure_model
from cairn.registry.names import entry_name
from cairn.registry.signedhead import claimed_head, key_name, open_head, origin_of, sign_head, verifier_key
from cairn.registry.tiles import entry_bundle, hash_tiles, tile_path
from cairn.store.crypto.signing import Identity
from tests.support import tiledlog
from tests.support.longlogs import grow_to, put
from tests.support.stores import Site


def export(site: Site, folder: Path | None, lines: Path | None = None, *heads: Head) -> Exported:
    opened = site.open()
    known = [KnownHead(head, "somebody") for head in heads]
    return Export(LogView.of(opened), known).write(folder, lines, lambda owners: opened.identity)


def make_log(site: Site, length: int) -> None:
    registry = site.registry()
    ensure_model(registry, "m")
    registry.close()
    grow_to(site, length)


@pytest.mark.parametrize("length", [2, 255, 256, 257, 600])
def test_a_second_verifier_reads_the_whole_log(site: Site, tmp_path: Path, length: int) -> None:
    make_log(site, length)
    done = export(site, tmp_path / "out")
    entries = tiledlog.verify_folder(tmp_path / "out", done.key)
    assert entries == [site.backend.read(entry_name(n)) for n in range(length)]
    assert done.owner and done.head.length == length and done.long_bundles == 0


def test_every_changed_byte_of_an_export_is_noticed(site: Site, tmp_path: Path) -> None:
    make_log(site, 258)
    done = export(site, tmp_path / "out")
    for path in [path for path in (tmp_path / "out").rglob("*") if path.is_file()]:
        data = path.read_bytes()
        for at in {0, 1, len(data) // 2, len(data) - 2}:
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            with pytest.raises((AssertionError, ValueError, InvalidSignature)):
                tiledlog.verify_folder(tmp_path / "out", done.key)
        path.write_bytes(data)
    tiledlog.verify_folder(tmp_path / "out", done.key)


def test_entries_that_two_bytes_cannot_count_stand_beside(site: Site, tmp_path: Path) -> None:
    """An entry of a foreign hand may be of any length; also one that is over the limit is exported whole."""
    make_log(site, 3)
    for n, length in ((3, 70_000), (4, (4 << 20) + 5)):
        site.backend.create(entry_name(n), [bytes(length)])
    grow = site.registry(cold=True)
    ensure_model(grow, "other")
    done = export(site, tmp_path / "out")
    assert done.long_bundles == 1
    assert list(map(len, tiledlog.verify_folder(tmp_path / "out", done.key)))[3:5] == [70_000, (4 << 20) + 5]


def test_names_of_tiles() -> None:
    """The examples of c2sp.org/tlog-tiles."""
    assert tile_path(1234067) == "x001/x234/067"
    assert (tile_path(0), tile_path(5, 112), tile_path(1000)) == ("000", "005.p/112", "x001/000")
    names = [name for name, _ in hash_tiles([bytes(32)] * 70_000)]
    assert len(names) == 273 + 1 + 1 + 1 + 1
    assert names[272:] == ["tile/0/272", "tile/0/273.p/112", "tile/1/000", "tile/1/001.p/17", "tile/2/000.p/1"]
    assert [name for name, _ in hash_tiles([bytes(32)] * 256)] == ["tile/0/000", "tile/1/000.p/1"]
    assert list(hash_tiles([])) == []
    assert entry_bundle(0, [b"ab", b""]) == ("tile/entries/000.p/2", b"\0\2ab\0\0")


def test_json_lines_say_each_entry(site: Site, tmp_path: Path) -> None:
    make_log(site, 5)
    export(site, None, tmp_path / "log.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["n"] for line in lines] == list(range(5))
    assert [line["type"] for line in lines] == ["init", "model.create", "run.open", "run.open", "run.open"]
    for line in lines:
        assert line["leaf"] == tiledlog.leaf(site.backend.read(entry_name(line["n"]))).hex()
        assert line["actor"] == site.open().identity.actor.hex() and line["void"] is None


def test_nothing_is_written_over_and_nothing_unsound_is_signed(site: Site, tmp_path: Path) -> None:
    make_log(site, 6)
    done = export(site, tmp_path / "out", tmp_path / "log.jsonl")
    with pytest.raises(DestinationExists):
        export(site, tmp_path / "out")
    with pytest.raises(DestinationExists):
        export(site, None, tmp_path / "log.jsonl")
    with pytest.raises(IntegrityError, match="went another way"):
        export(site, tmp_path / "forked", None, Head(done.head.length, bytes(32)))
    put(site, entry_name(3), site.backend.read(entry_name(4)))
    with pytest.raises(IntegrityError, match="signed as entry 4"):
        export(site, tmp_path / "changed")
    assert not (tmp_path / "forked" / "checkpoint").exists() and not (tmp_path / "changed" / "checkpoint").exists()


# --- Signed heads ------------------------------------------------------------------------------------


def test_a_signed_head_is_a_note_that_both_sides_open(site: Site) -> None:
    opened, head = site.open(), Head(7, bytes(range(32)))
    owner, witness = opened.identity, Identity.generate(site.entropy)
    note = sign_head(opened.store, head, owner, [owner.actor])
    assert open_head(note, opened.store, [owner.actor], "x") == (head, owner.actor)
    name = key_name(opened.store, owner.actor, [owner.actor])
    read = tiledlog.open_checkpoint(note, verifier_key(name, owner.actor))
    assert (read.origin, read.size, read.root) == (origin_of(opened.store), 7, head.root)
    other = sign_head(opened.store, head, witness, [owner.actor])
    both = note + other.rpartition("\n\n")[2]
    assert open_head(both, opened.store, [owner.actor], "x").head == head
    assert claimed_head(other, opened.store, "x") == head
    witness_name = key_name(opened.store, witness.actor, [owner.actor])
    assert tiledlog.open_checkpoint(both, verifier_key(witness_name, witness.actor)).size == 7
    with pytest.raises(IntegrityError, match="no good signature"):
        open_head(other, opened.store, [owner.actor], "x")


def test_what_is_no_head_of_this_log_is_refused(site: Site) -> None:
    opened = site.open()
    owner = opened.identity.actor
    note = sign_head(opened.store, Head(7, bytes(32)), opened.identity, [owner])
    lines = note.split("\n")
    root = b64encode(b"\1" + bytes(31)).decode()
    bad = [
        "", "\n\n", "x" * 70_000, note.replace("\n\n", "\n"), note.replace("cairn/", "other/"),
        "\n".join([lines[0], "8", *lines[2:]]), "\n".join([lines[0], "07", *lines[2:]]),
        "\n".join([lines[0], "-7", *lines[2:]]), "\n".join([*lines[:2], root, *lines[3:]]),
        "\n".join([*lines[:2], "AAAA", *lines[3:]]), "\n".join([*lines[:3], "more", *lines[3:]]),
        note.replace("\N{EM DASH}", "-"), note[:-3] + "\n", note.rpartition(" ")[0] + " !!!!\n",
    ]  # fmt: skip
    for text in bad:
        with pytest.raises(IntegrityError):
            open_head(text, opened.store, [owner], "x")
