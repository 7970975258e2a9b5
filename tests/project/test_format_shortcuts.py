"""Bundles and fold snapshots are what section 9 of the format document says; read by the second reader's means."""

import hashlib
import struct
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from cairn.registry import shortcuts
from cairn.registry.models import ensure_model
from cairn.registry.shortcuts import write_shortcuts
from cairn.store.backends.posix import PosixBackend
from tests.support.longlogs import grow_to
from tests.support.stores import close_environments, new_site
from tests.vectors.format.reader import Vault, decode, hash_of
from tests.vectors.format.reader_log import Log, merkle_root

LENGTH = 300


@pytest.fixture
def vault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Vault:
    """A store in a folder with one bundle and one snapshot."""
    monkeypatch.setattr(shortcuts, "SNAPSHOT_ENTRIES", 20)
    (tmp_path / "store").mkdir()
    site = new_site(tmp_path / "home", PosixBackend(tmp_path / "store"))
    ensure_model(site.registry(), "m")
    grow_to(site, LENGTH)
    assert write_shortcuts(site.registry()) == (1, 1, 0)
    close_environments()
    (key,) = (site.home.data / "keys").iterdir()
    return Vault(tmp_path / "store", key.read_bytes())


def test_a_bundle(vault: Vault) -> None:
    data = vault.read("bundles/000000000000")
    assert data[:8] == b"CRNB" + bytes((1, 0, 0, 0))
    assert (data[8:16], data[16:32]) == (bytes(8), vault.id)
    assert data[-32:] == hash_of(data[:-32])
    at = 32 + 4 * 256
    for n, length in enumerate(struct.unpack_from("<256I", data, 32)):
        assert data[at : at + length] == vault.read(f"log/00000000/{n:012d}")
        at += length
    assert at == len(data) - 32


def test_a_snapshot(vault: Vault) -> None:
    (path,) = (vault.folder / "snapshots").iterdir()
    length, version = path.name.split("-")
    plain = vault.open(vault.k_log, 9, path.read_bytes())
    (size,) = struct.unpack_from("<I", plain)
    statement, signature = decode(plain[4 : 4 + size])
    said, log = decode(statement), Log(vault)
    assert said["actor"] == log.owners[0]
    Ed25519PublicKey.from_public_bytes(said["actor"]).verify(signature, b"cairn/1/snapshot\0" + statement)
    assert said == {
        "format": 1, "tenant": vault.tenant, "store": vault.id, "length": LENGTH, "root": merkle_root(log.leaves),
        "version": int(version), "actor": said["actor"], "state": hash_of(plain[4 + size :]),
    }  # fmt: skip
    assert (length, len(log.leaves)) == (f"{LENGTH:012d}", LENGTH)
    assert hashlib.sha256(b"\0" + vault.read(f"log/00000000/{LENGTH - 1:012d}")).digest() == log.leaves[-1]
