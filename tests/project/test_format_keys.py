"""The second reader opens what was sealed to keys of several generations, as owner and as member."""

import json
from pathlib import Path

import pytest

from cairn.core.errors import NotAllowed
from cairn.registry.models import move_ref
from cairn.registry.rights import Role
from cairn.registry.rotation import rotate_model, rotate_root
from cairn.store.backends.posix import PosixBackend
from cairn.store.crypto.components import ComponentClass
from tests.support.members import actor_of, give, identity_of, join
from tests.support.stores import Site, commit_tree, new_site, tip
from tests.support.tensors import safetensors, weights
from tests.support.trees import write_files
from tests.vectors.format.reader import Damaged, hash_of
from tests.vectors.format.reader_log import Log
from tests.vectors.format.reader_member import MemberVault
from tests.vectors.format.reader_tree import Store

FILES, WEIGHTS = ComponentClass.FILES, ComponentClass.WEIGHTS


@pytest.fixture
def kept(tmp_path: Path) -> Site:
    """A store in a folder: a commit with each of three generations of keys, and two root keys."""
    site = new_site(tmp_path / "home", PosixBackend(tmp_path / "store"))
    for step in range(3):
        tree = {"m.safetensors": safetensors({"w": weights(step, 8, 8)}), "notes": b"notes %d" % step}
        registry = site.registry()
        commit_tree(registry, write_files(tmp_path / f"tree-{step}", tree), "llama", step=step, message=f"step {step}")
        model, checkpoint = tip(registry, "llama")
        move_ref(registry, model, f"v{step}", "tag", None, checkpoint)
        rotate_model(registry, model)
    rotate_root(site.registry())
    return site


def test_an_owner_reads_all_generations(kept: Site, tmp_path: Path) -> None:
    registry = kept.registry()
    key_file = kept.home.key_file(registry.opened.store)
    assert json.loads(key_file.read_text())["generation"] == 1
    store = Store(tmp_path / "store", key_file.read_bytes())
    model = store.models()["llama"]
    assert set(store.refs(model)) == {"main", "v0", "v1", "v2"}
    for step in range(3):
        checkpoint = store.refs(model)[f"v{step}"]
        assert (store.message(model, checkpoint)["step"], store.message(model, checkpoint)["message"]) == (
            step, f"step {step}",
        )  # fmt: skip
        roots = store.log.models[model]["checkpoints"][checkpoint]["roots"]
        assert {root["generation"] for root in roots} == {step}
        assert all(store.root(model, root)["entries"] for root in roots)


def test_a_member_reads_what_was_granted_and_no_more(kept: Site, tmp_path: Path) -> None:
    member = join(kept, "reader", Role.READER)
    give(kept, member, "llama", WEIGHTS)
    seed = identity_of(member).seed()
    vault = MemberVault(tmp_path / "store", seed)
    store = Store(tmp_path / "store", None, vault=vault)
    assert vault.actor == actor_of(member)
    assert store.log.rights.members[vault.actor]["hash"] == hash_of(vault.stored)
    model = store.models()["llama"]
    for step in range(3):
        roots = store.log.models[model]["checkpoints"][store.refs(model)[f"v{step}"]]["roots"]
        for root in roots:
            if root["component"] == WEIGHTS:
                assert store.root(model, root)["entries"] == 1
            else:
                with pytest.raises(Damaged, match="not granted"):
                    store.root(model, root)


def test_an_auditor_follows_the_log(kept: Site, tmp_path: Path) -> None:
    member = join(kept, "auditor", Role.AUDITOR)
    vault = MemberVault(tmp_path / "store", identity_of(member).seed())
    log = Log(vault)
    assert log.models.keys() == kept.registry().state.models.keys() and log.void == {}
    with pytest.raises(Damaged):
        Store(tmp_path / "store", None, vault=vault)
    with pytest.raises(NotAllowed):
        _ = member.registry().opened.secrets.k_index
