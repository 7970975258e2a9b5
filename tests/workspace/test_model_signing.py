"""Signatures of the OpenSSF's kind, read by a verifier written from its rules; docs/signing.md names its own tool."""

import hashlib
import json
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from cairn.core.errors import BadInput, CairnError, DestinationExists, IntegrityError, NotAllowed, RefusedError
from cairn.store.crypto.eckeys import EcKey
from cairn.workspace.model_signing import SAFETENSORS, sign_export
from tests.support.stores import Site, commit_tree, new_site, tip
from tests.support.tensors import safetensors, weights
from tests.support.trees import write_files

CURVES = {ec.SECP256R1: hashes.SHA256, ec.SECP384R1: hashes.SHA384, ec.SECP521R1: hashes.SHA512}
NAME = "it"


def key_file(folder: Path, key: Any = None, passphrase: bytes | None = None) -> Path:
    """A private key in PEM, P-256 if none is given."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    sealing = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealing)
    )
    return folder / "key.pem"


def verified(folder: Path, public: bytes) -> dict[str, Any]:
    """The statement of `model.sig` in a folder, all of whose files it must speak for.

    Raises:
        AssertionError, InvalidSignature: something is not as it has to be.
    """
    bundle = json.loads((folder / "model.sig").read_bytes())
    assert bundle["mediaType"] == "application/vnd.dev.sigstore.bundle.v0.3+json"
    assert bundle["verificationMaterial"] == {
        "publicKey": {"hint": hashlib.sha256(public).hexdigest()}, "tlogEntries": [],
    }  # fmt: skip
    envelope = bundle["dsseEnvelope"]
    payload, (signature,) = b64decode(envelope["payload"]), envelope["signatures"]
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    key = serialization.load_pem_public_key(public)
    assert isinstance(key, ec.EllipticCurvePublicKey)
    message = b"DSSEv1 28 application/vnd.in-toto+json %d %s" % (len(payload), payload)
    key.verify(b64decode(signature["sig"]), message, ec.ECDSA(CURVES[type(key.curve)]()))
    statement: dict[str, Any] = json.loads(payload)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://model_signing/signature/v1.0"
    serialization_, resources = statement["predicate"]["serialization"], statement["predicate"]["resources"]
    assert (serialization_["method"], serialization_["hash_type"]) == ("files", "sha256")
    left_out = {*serialization_["ignore_paths"], "model.sig"}
    here = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.relative_to(folder).parts[0] not in left_out
    }
    assert {one["name"]: one["digest"] for one in resources} == here
    assert {one["algorithm"] for one in resources} <= {"sha256"}
    assert [one["name"].split("/") for one in resources] == sorted(name.split("/") for name in here)
    (subject,) = statement["subject"]
    digests = b"".join(bytes.fromhex(one["digest"]) for one in resources)
    assert subject["digest"] == {"sha256": hashlib.sha256(digests).hexdigest()}
    return statement


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return new_site(tmp_path / "home")


@pytest.fixture
def key(tmp_path: Path) -> EcKey:
    return EcKey.read(key_file(tmp_path))


def committed(site: Site, tmp_path: Path, files: dict[str, bytes]) -> None:
    commit_tree(site.registry(), write_files(tmp_path / "tree", files))


def exported(site: Site, key: EcKey, out: Path, form: str = "files") -> Any:
    registry = site.registry()
    return sign_export(registry, *tip(registry), out, NAME, key, form)


TENSORS = safetensors({"w": weights(1, 300, 300)})
FILES = {"model.safetensors": TENSORS, "a/x": b"1", "a.txt": b"", "a-b": b"2", "ü/ф ": b"3"}


def test_the_files_of_a_checkpoint_are_signed(site: Site, key: EcKey, tmp_path: Path) -> None:
    committed(site, tmp_path, FILES)
    made = exported(site, key, tmp_path / "out")
    statement = verified(tmp_path / "out", key.public_pem())
    registry = site.registry()
    _, checkpoint = tip(registry)
    (subject,) = statement["subject"]
    assert (subject["name"], subject["annotations"]) == (NAME, {"cairnCheckpoint": checkpoint.hex()})
    assert (made.files, made.left_out, made.digest) == (len(FILES), (), subject["digest"]["sha256"])
    for name, data in FILES.items():
        assert (tmp_path / "out" / name).read_bytes() == data


def test_tensors_in_another_form_are_signed(site: Site, key: EcKey, tmp_path: Path) -> None:
    committed(site, tmp_path, {"model.safetensors": TENSORS, "config.json": b"{}"})
    exported(site, key, tmp_path / "out", SAFETENSORS)
    names = {one["name"] for one in verified(tmp_path / "out", key.public_pem())["predicate"]["resources"]}
    assert names == {path.name for path in (tmp_path / "out").iterdir()} - {"model.sig"} and len(names) > 1


@pytest.mark.parametrize("change", ["altered", "added", "removed", "renamed"])
def test_what_is_changed_afterwards_shows(site: Site, key: EcKey, tmp_path: Path, change: str) -> None:
    committed(site, tmp_path, FILES)
    exported(site, key, tmp_path / "out")
    path = tmp_path / "out" / "a-b"
    {
        "altered": lambda: path.write_bytes(b"3"), "added": lambda: path.with_name("n").touch(), "removed": path.unlink,
        "renamed": lambda: path.rename(path.with_name("n")),
    }[change]()  # fmt: skip
    with pytest.raises(AssertionError):
        verified(tmp_path / "out", key.public_pem())


def test_another_key_does_not_verify(site: Site, key: EcKey, tmp_path: Path) -> None:
    committed(site, tmp_path, {"a": b"1"})
    exported(site, key, tmp_path / "out")
    file = tmp_path / "out" / "model.sig"
    other = EcKey.read(key_file(tmp_path))
    file.write_text(file.read_text().replace(key.hint(), other.hint()))
    with pytest.raises(InvalidSignature):
        verified(tmp_path / "out", other.public_pem())


@pytest.mark.parametrize("curve", CURVES)
def test_each_curve_signs_with_the_hash_of_its_strength(
    site: Site, tmp_path: Path, curve: type[ec.EllipticCurve]
) -> None:
    committed(site, tmp_path, {"a": b"1"})
    key = EcKey.read(key_file(tmp_path, ec.generate_private_key(curve())))
    exported(site, key, tmp_path / "out")
    verified(tmp_path / "out", key.public_pem())


def test_files_of_git_are_left_out_and_told(site: Site, key: EcKey, tmp_path: Path) -> None:
    """As the reference tool does, which would else find them unsigned, or missing."""
    committed(site, tmp_path, {".gitattributes": b"x", ".github/w": b"y", "a/.gitignore": b"z", "b": b"1"})
    made = exported(site, key, tmp_path / "out")
    assert made.left_out == (".gitattributes", ".github/w")
    names = [one["name"] for one in verified(tmp_path / "out", key.public_pem())["predicate"]["resources"]]
    assert names == ["a/.gitignore", "b"]


# --- What is refused ------------------------------------------------------------------------------


def test_links_and_odd_names_are_refused_and_nothing_is_left(site: Site, key: EcKey, tmp_path: Path) -> None:
    for number, prepare in enumerate(
        (
            lambda tree: (tree / "link").symlink_to("a"),
            lambda tree: (tree / "d").mkdir() or (tree / "d" / "link").symlink_to(".."),
            lambda tree: Path(bytes(tree).decode() + "/\udcff").write_bytes(b"x"),
            lambda tree: (tree / "model.sig").write_bytes(b"x"),
        )
    ):
        tree = write_files(tmp_path / f"tree-{number}", {"a": b"1"})
        prepare(tree)
        commit_tree(site.registry(), tree, "m")
        with pytest.raises(RefusedError):
            exported(site, key, tmp_path / "out")
        assert not [path for path in tmp_path.iterdir() if "out" in path.name]


def test_a_destination_that_is_taken_and_a_damaged_checkpoint(site: Site, key: EcKey, tmp_path: Path) -> None:
    committed(site, tmp_path, FILES)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").touch()
    with pytest.raises(DestinationExists):
        exported(site, key, tmp_path / "out")
    for name in site.names(".pack"):
        site.backend.delete(name)
    with pytest.raises(IntegrityError):
        exported(site, key, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def of_unknown_curve(path: Path) -> Path:
    """Let a key of P-256 say that it is one of prime239v2, which the library does not know."""
    head, *body, end = path.read_text().splitlines()
    der = b64decode("".join(body)).replace(bytes.fromhex("2a8648ce3d030107"), bytes.fromhex("2a8648ce3d030105"))
    path.write_text("\n".join([head, b64encode(der).decode(), end]))
    return path


def test_keys_of_other_kinds_are_refused(tmp_path: Path) -> None:
    for key in (ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256K1())):
        with pytest.raises(BadInput, match="P-256, P-384 or P-521"):
            EcKey.read(key_file(tmp_path, key))
    with pytest.raises(BadInput, match="P-256, P-384 or P-521"):
        EcKey.read(of_unknown_curve(key_file(tmp_path)))
    (tmp_path / "key.pem").write_text("nonsense")
    with pytest.raises(BadInput, match="no private key"):
        EcKey.read(tmp_path / "key.pem")
    with pytest.raises(NotAllowed, match="cannot be read"):
        EcKey.read(tmp_path / "none.pem")


def test_a_passphrase_is_asked_for(tmp_path: Path) -> None:
    path = key_file(tmp_path, passphrase=b"right")
    assert EcKey.read(path, lambda: "right").public_pem()
    errors: list[CairnError] = []
    for ask in (None, lambda: None, lambda: "wrong"):
        with pytest.raises(NotAllowed) as caught:
            EcKey.read(path, ask)
        errors.append(caught.value)
    assert all("right" not in error.message + error.hint for error in errors)
    assert "secret" in repr(EcKey.read(path, lambda: "right"))
