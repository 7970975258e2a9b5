"""A statement that the first reader signed is what section 10 of the format document says."""

from pathlib import Path

import pytest

from cairn.registry.attestations import sign
from cairn.store.backends.posix import PosixBackend
from tests.support.doubles import START_NS
from tests.support.signing import ALICE, MALLORY, VERSION, forged, put, subject_of
from tests.support.stores import Site, close_environments, commit_tree, new_site, tip
from tests.support.trees import write_files
from tests.vectors.format.reader import Damaged
from tests.vectors.format.reader_tree import Store

MODEL, REF = "mödel", "bränch"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A store in a folder with a commit."""
    (tmp_path / "store").mkdir()
    site = new_site(tmp_path / "home", PosixBackend(tmp_path / "store"))
    commit_tree(site.registry(), write_files(tmp_path / "tree", {"a.txt": b"text"}), MODEL, branch=REF)
    return site


def read_again(site: Site, folder: Path) -> Store:
    close_environments()
    (key,) = (site.home.data / "keys").iterdir()
    return Store(folder, key.read_bytes())


def test_the_second_reader_opens_and_verifies_a_statement(site: Site, tmp_path: Path) -> None:
    made = sign(site.registry(), f"{MODEL}@{REF}", VERSION, ALICE)
    model, checkpoint = tip(site.registry(), f"{MODEL}@{REF}")
    store = read_again(site, tmp_path / "store")
    assert store.log.void == {} and store.models() == {MODEL: model}
    ((body, statement),) = store.statements(model, checkpoint)
    (tag,) = store.log.models[model]["refs"]
    assert (body["signer"], body["tag"], body["signed_at"]) == (ALICE.actor, tag, START_NS // 1000)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    (subject,) = statement["subject"]
    assert subject["name"] == f"{MODEL}@{REF}" and subject["digest"] == {"cairn-checkpoint-v1": checkpoint.hex()}
    assert subject["annotations"] == {
        "tenant": store.vault.tenant.hex(), "model": model.hex(), "modelName": MODEL, "ref": REF, "kind": "branch",
        "signedAt": "2026-01-01T00:00:00.000000Z",
    }  # fmt: skip
    assert statement["predicate"] == made.statement.predicate


def test_the_second_reader_refuses_a_signature_by_another(site: Site, tmp_path: Path) -> None:
    registry = site.registry()
    subject = subject_of(registry, f"{MODEL}@{REF}", REF)
    put(registry, subject, forged(subject, by=MALLORY), ALICE)
    store = read_again(site, tmp_path / "store")
    with pytest.raises(Damaged, match="signature of a statement"):
        store.statements(subject.model, subject.checkpoint)
