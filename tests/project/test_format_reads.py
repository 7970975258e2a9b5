"""Pins, records of reads and the entries that gather them are what sections 8 and 10 of the format document say."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from cairn.registry.fold_policy import AUDIT_READS, AuditReads
from cairn.registry.pins import Pin
from cairn.registry.policy import set_policy
from cairn.registry.reads import gather
from cairn.store.backends.posix import PosixBackend
from tests.support.stores import Site, close_environments, commit_tree, new_site, tip
from tests.support.trees import write_files
from tests.vectors.format.reader import Fields, Vault, decode

Place = tuple[Site, Vault]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A store in a folder with a commit, and the second reader's view of it."""
    (tmp_path / "store").mkdir()
    site = new_site(tmp_path / "home", PosixBackend(tmp_path / "store"))
    commit_tree(site.registry(), write_files(tmp_path / "tree", {"a.txt": b"text"}))
    close_environments()
    (key,) = (site.home.data / "keys").iterdir()
    return site, Vault(tmp_path / "store", key.read_bytes())


def signed_record(data: bytes, label: bytes) -> Fields:
    """The record of an array of two, whose signature holds."""
    record, signature = decode(data)
    fields: Fields = decode(record)
    Ed25519PublicKey.from_public_bytes(fields["actor"]).verify(signature, label + record)
    return fields


def entry_payload(vault: Vault, n: int) -> tuple[str, Fields]:
    """Type and payload of a log entry."""
    entry = decode(decode(vault.open(vault.k_log, 1, vault.read(f"log/00000000/{n:012d}")))[0])
    return entry["type"], decode(entry["payload"])


def test_from_a_pin_to_an_entry(place: Place) -> None:
    site, vault = place
    registry = site.registry()
    pin = Pin(registry, *tip(registry))
    (path,) = (vault.folder / "pins").iterdir()
    fields = signed_record(vault.open(vault.k_log, 10, path.read_bytes()), b"cairn/1/pin\0")
    read = signed_record(fields["read"], b"cairn/1/read\0")
    assert read == {
        "read": fields["pin"], "store": vault.id, "model": fields["model"], "checkpoint": fields["checkpoint"],
        "actor": fields["actor"], "at": fields["claimed_at"],
    }  # fmt: skip
    assert path.name == f"{read['read'].hex()}.pin"
    pin.release()
    (path,) = (vault.folder / "pins").iterdir()
    assert path.name == f"{read['read'].hex()}.ended"
    assert vault.open(vault.k_log, 10, path.read_bytes()) == fields["read"]
    gather(registry)
    assert entry_payload(vault, registry.state.length - 1) == ("reads", {"reads": [fields["read"]]})
    assert list((vault.folder / "pins").iterdir()) == []
    registry.close()


def test_settings(place: Place) -> None:
    site, vault = place
    registry = site.registry()
    set_policy(registry, AUDIT_READS, AuditReads.OFF)
    assert entry_payload(vault, registry.state.length - 1) == ("policy", {"settings": {"audit_reads": "off"}})
    pin = Pin(registry, *tip(registry))
    (path,) = (vault.folder / "pins").iterdir()
    assert "read" not in signed_record(vault.open(vault.k_log, 10, path.read_bytes()), b"cairn/1/pin\0")
    pin.release()
    registry.close()
