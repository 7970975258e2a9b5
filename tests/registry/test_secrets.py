"""Nothing that is stored or printed shows content, names or keys; two tenants share nothing."""

from dataclasses import fields, is_dataclass
from pathlib import Path

import msgspec
import pytest

from cairn.core.errors import CairnError, IntegrityError, NotFoundError
from cairn.core.ids import Digest
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.indexing import piece_locations
from cairn.registry.opened import KeySource, OpenStore
from cairn.registry.reachability import read_reachability
from cairn.registry.registry import Registry
from cairn.store.crypto.components import ComponentClass
from tests.support.doubles import SeededEntropy
from tests.support.stores import Site, checkout_to, commit_tree, new_site, tip
from tests.support.tensors import safetensors, weights
from tests.support.trees import write_files

MARK = b"the quick brown fox"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tensors = {"secret.layer.name": weights(1, 64, 64), "tiny": weights(2, 4)}
    return write_files(tmp_path / "tree", {"secret-file-name.txt": MARK * 40, "m.safetensors": safetensors(tensors)})


@pytest.fixture
def registry(site: Site, folder: Path) -> Registry:
    registry = site.registry()
    commit_tree(registry, folder, "secret-model-name", branch="secret-branch-name", message="secret message text")
    return registry


def manifest_of(registry: Registry) -> CheckpointManifest:
    return CheckpointManifest(registry, *tip(registry, "secret-model-name@secret-branch-name"))


def windows(data: bytes, length: int = 16) -> set[bytes]:
    return {data[at : at + length] for at in range(len(data) - length + 1)}


def secrets_of(opened: OpenStore) -> list[bytes]:
    held = [getattr(opened.secrets, name) for name in opened.secrets.__struct_fields__]
    keys = [getattr(kind, name) for kind in (opened.keys.chunk, opened.keys.page) for name in ("hash", "id", "enc")]
    assert opened.key_file is not None
    root = bytes.fromhex(opened.key_file.read_text().split('"root key": "')[1][:64])
    return [*held, *keys, root, opened.identity.seed()]


def digests_of(manifest: CheckpointManifest) -> list[Digest]:
    tiles = [digest for entry in manifest.tensors() for digest in manifest.tiles(entry)]
    return tiles + [digest for component in manifest.components for digest in manifest.page_digests(component)]


def test_no_stored_object_shows_content_names_keys_or_digests(site: Site, registry: Registry, folder: Path) -> None:
    manifest = manifest_of(registry)
    told = [MARK, b"secret-model-name", b"secret-branch-name", b"secret message", b"secret.layer", b"secret-file"]
    told += secrets_of(registry.opened) + [bytes(digest) for digest in digests_of(manifest)]
    told += [weights(1, 64, 64).tobytes()[:16], weights(2, 4).tobytes()]
    assert len(told) > 20
    for name in site.names():
        data = site.backend.read(name)
        for secret in told:
            assert secret not in data
            assert secret.hex().encode() not in data
            assert secret.hex() not in name and secret.decode("latin-1") not in name


def test_no_repr_of_what_holds_keys_shows_them(registry: Registry) -> None:
    opened, manifest = registry.opened, manifest_of(registry)
    shown = [opened, opened.access, opened.secrets, opened.keys, opened.provider, opened.identity, opened.home]
    keys = registry.model_keys(manifest.model)
    shown += [keys, *keys.all(), KeySource(passphrase="correct horse"), manifest, registry, registry.state]
    private = [pair.private or b"" for pair in keys.all()]
    assert all(len(half) == 32 for half in private)
    for one in shown:
        text = repr(one) + str(one)
        assert "correct horse" not in text
        for secret in secrets_of(opened) + private:
            assert secret.hex() not in text
            assert repr(secret)[2:-1] not in text


def test_no_repr_of_a_manifest_shows_a_digest(registry: Registry) -> None:
    manifest = manifest_of(registry)
    parts: list[object] = [*manifest.tensors(), *manifest.files()]
    parts += [manifest.root(component) for component in manifest.components]
    secrets = digests_of(manifest)
    assert secrets
    for part in parts:
        assert not any(repr(bytes(digest))[2:-1] in repr(part) for digest in secrets), type(part).__name__


def test_no_error_about_damage_shows_a_digest_or_key(site: Site, registry: Registry, tmp_path: Path) -> None:
    secrets = [bytes(digest) for digest in digests_of(manifest_of(registry))] + secrets_of(registry.opened)
    told = []
    for name in site.names():
        data = site.backend.read(name)
        for harmed in (None, data[: len(data) // 2], data[:-1] + bytes([data[-1] ^ 1])):
            site.backend.delete(name)
            if harmed is not None:
                site.backend.create(name, [harmed])
            try:
                checkout_to(
                    site.registry(cold=True), "secret-model-name@secret-branch-name", tmp_path / f"out-{len(told)}"
                )
            except (CairnError, KeyError) as error:
                told.append(str(error) + repr(error))
            site.backend.delete(name)
            site.backend.create(name, [data])
    assert len(told) > 15
    for text in told:
        assert not any(secret.hex() in text or repr(secret)[2:-1] in text for secret in secrets)


# --- Two tenants ------------------------------------------------------------------------------


def test_X08_two_tenants_with_equal_content_share_no_id_and_no_run_of_bytes(tmp_path: Path, folder: Path) -> None:
    seen: list[tuple[set[bytes], set[bytes]]] = []
    for seed in (1, 2):
        site = new_site(tmp_path / f"home-{seed}", seed=seed)
        registry = site.registry()
        commit_tree(registry, folder)
        model, checkpoint = tip(registry)
        ids = set(read_reachability(registry.opened, registry.state.models[model].checkpoints[checkpoint]))
        sealed = b"".join(site.backend.read(name)[8:-24] for name in site.names(".pack"))
        assert ids
        seen.append(({bytes(one) for one in ids}, windows(sealed)))
    for first, second in zip(*seen, strict=True):
        assert not first & second


def test_objects_of_another_store_do_not_open_here(tmp_path: Path, folder: Path) -> None:
    sites = [new_site(tmp_path / f"home-{seed}", seed=seed) for seed in (1, 2)]
    for site in sites:
        commit_tree(site.registry(), folder)
    mine, theirs = sites
    tried = 0
    for ending in (".pack", ".index", ".root", ".body", ".reach", "000000000001", "000000000002"):
        for own in mine.names(ending):
            data = mine.backend.read(own)
            mine.backend.delete(own)
            mine.backend.create(own, [theirs.backend.read(theirs.names(ending)[0])])
            registry = mine.registry(cold=True)
            with pytest.raises((IntegrityError, NotFoundError)):
                registry.check_writable()
                # A piece is made up for by footers, and a list is not needed to read.
                read_all_lists(registry)
                checkout_to(registry, "m", tmp_path / f"out-{tried}")
            mine.backend.delete(own)
            mine.backend.create(own, [data])
            tried += 1
    assert tried >= 8
    checkout_to(mine.registry(cold=True), "m", tmp_path / "out")


def read_all_lists(registry: Registry) -> None:
    for piece in registry.state.pieces:
        piece_locations(registry.opened, registry.state, piece)
    for model in registry.state.models.values():
        for checkpoint in model.checkpoints.values():
            read_reachability(registry.opened, checkpoint)


def test_every_field_of_an_open_store_is_public_or_hidden() -> None:
    """A field that is added must say which it is."""
    public = {"backend", "store", "tenant", "identity", "home", "clock", "entropy", "key_file", "member_wrap"}
    assert is_dataclass(OpenStore)
    assert {field.name for field in fields(OpenStore) if field.repr} == public


def test_equal_seeds_are_equal_stores_but_stores_draw_their_own(tmp_path: Path, folder: Path) -> None:
    """The builders are deterministic, so that the tests above compare what they mean to."""
    assert SeededEntropy(3).token(9) == SeededEntropy(3).token(9) != SeededEntropy(4).token(9)
    assert msgspec.structs.asdict(new_site(tmp_path / "a", seed=7).open().secrets) == msgspec.structs.asdict(
        new_site(tmp_path / "b", seed=7).open().secrets
    )
    assert ComponentClass.META == 0
