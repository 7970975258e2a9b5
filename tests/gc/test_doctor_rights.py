"""What a doctor says of keys and rights."""

from pathlib import Path

import pytest

from cairn.gc.doctor import examine
from cairn.gc.remark import ACT
from cairn.registry.members import remove_member, revoke
from cairn.registry.registry import Registry
from cairn.registry.rights import Role
from cairn.registry.rotation import rotate_exposed, rotate_root
from cairn.store.crypto.components import ComponentClass
from tests.support.members import actor_of, give, join
from tests.support.stores import Site, commit_tree, tip
from tests.support.trees import write_files


@pytest.fixture
def committed(site: Site, tmp_path: Path) -> Site:
    commit_tree(site.registry(), write_files(tmp_path / "tree", {"a": b"a" * 1000}))
    return site


def urgent(registry: Registry) -> list[str]:
    """Texts of what needs an act, about keys and rights."""
    remarks = examine(registry)
    return [one.text for one in remarks if one.level == ACT and one.topic in ("keys", "key", "identity", "writing")]


@pytest.mark.parametrize("role", list(Role))
def test_each_member_is_told_what_it_is(committed: Site, role: Role) -> None:
    registry = join(committed, role, role).registry()
    told = {one.topic: one.text for one in examine(registry)}
    assert (role in told["identity"]) and "member" in told["key"]
    assert urgent(registry) == []


def test_a_rotation_that_is_due_is_named_until_it_is_done(committed: Site) -> None:
    reader, second = join(committed, "reader", Role.READER), join(committed, "second", Role.OWNER)
    give(committed, reader, "m", ComponentClass.FILES)
    owner = committed.registry()
    revoke(owner, actor_of(reader), tip(owner)[0])
    (text,) = urgent(owner)
    assert "1 model" in text
    rotate_exposed(owner)
    assert urgent(owner) == []
    remove_member(owner, actor_of(second))
    assert len(urgent(owner)) == 2
    rotate_exposed(owner)
    rotate_root(owner)
    assert urgent(owner) == []
