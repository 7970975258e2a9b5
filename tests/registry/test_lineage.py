"""What checkpoints were made from: declared parents, and walks up and down."""

from pathlib import Path

import pytest

from cairn.core.errors import GoneError, NotAllowed, NotFoundError, UsageError
from cairn.core.ids import CheckpointId, short
from cairn.core.limits import LINEAGE_PARENTS_MAX
from cairn.manifests.relations import CONTINUE, DECLARED, RELATIONS
from cairn.registry import lineage as walking
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.lineage import (
    DeclaredParent,
    Lineage,
    Link,
    Standing,
    ancestors,
    descendants,
    resolve_start,
    spread,
)
from cairn.registry.registry import Registry
from cairn.registry.rights import Role
from cairn.registry.sync import SendOptions, send
from cairn.workspace.commit import CommitResult
from tests.support.histories import History, drop_due
from tests.support.members import join
from tests.support.stores import commit_tree, new_site, tip
from tests.support.trees import write_files
from tests.support.twins import twin_of


@pytest.fixture
def line(tmp_path: Path) -> History:
    """Steps 1 to 3 of `m`."""
    return History(tmp_path, 3, seconds_apart=0)


def made(line: History, model: str, *parents: tuple[str, str], **options: object) -> CheckpointId:
    return make(line, model, *parents, **options).checkpoint


def make(line: History, model: str, *parents: tuple[str, str], **options: object) -> CommitResult:
    """Commit one tree that depends on the model's name alone."""
    tree = write_files(line.folder / f"tree-{model}", {"a": model.encode() * 100})
    declared = tuple(DeclaredParent(*parent) for parent in parents)
    return commit_tree(line.registry, tree, model, parents=declared, **options)


def parents_of(registry: Registry, selector: str) -> list[tuple[str, bytes]]:
    body = CheckpointManifest(registry, *tip(registry, selector)).body
    return [(one.relation, one.checkpoint) for one in body.parents]


def links(found: Lineage) -> list[tuple[CheckpointId, str, CheckpointId]]:
    """From child to parent."""
    assert found.complete
    assert {end for link in found.links for end in (link.child, link.parent)} <= {node.id for node in found.nodes}
    return [(link.child, link.relation, link.parent) for link in found.links]


def standings(found: Lineage) -> dict[CheckpointId, str]:
    return {node.id: node.standing for node in found.nodes}


# --- Declared parents ---------------------------------------------------------------------------


def test_declared_parents_stand_in_the_body_behind_the_tip(line: History) -> None:
    first = made(line, "chat", ("m", "finetune"), ("m@step:2", "merge"), ("m", "finetune"))
    assert parents_of(line.registry, "chat") == [("finetune", line.ids[3]), ("merge", line.ids[2])]
    made(line, "chat", ("m@step:1", "distill"), step=2)
    assert parents_of(line.site.registry(cold=True), "chat") == [("continue", first), ("distill", line.ids[1])]


def test_only_known_relations_are_declared_and_only_to_what_is_here(line: History) -> None:
    line.delete(1)
    before = line.site.names()
    for parent, error in {
        ("m", "continue"): UsageError,
        ("m", "reseal"): UsageError,
        ("m", "sibling"): UsageError,
        ("nothing", "merge"): NotFoundError,
        ("m@ffff0000", "merge"): NotFoundError,
        (f"m@{short(line.ids[1])}", "merge"): GoneError,
    }.items():
        with pytest.raises(error):
            made(line, "chat", parent)
    with pytest.raises(UsageError, match="limit"):
        made(line, "chat", *[("m", "merge")] * (LINEAGE_PARENTS_MAX + 1))
    assert line.site.names() == before
    for relation in DECLARED:
        made(line, "chat", ("m", relation))
    assert {relation for relation, _ in parents_of(line.registry, "chat")} == {"continue", DECLARED[-1]} <= {*RELATIONS}


def test_a_parent_that_the_tip_has_not_got_makes_a_checkpoint(line: History) -> None:
    assert make(line, "chat", ("m", "finetune")).created
    assert not make(line, "chat", ("m", "finetune")).created
    assert not make(line, "chat").created
    assert make(line, "chat", ("m@step:2", "finetune")).created
    assert make(line, "chat", ("m@step:2", "merge")).created


# --- Walks --------------------------------------------------------------------------------------


def test_up_and_down_across_models(line: History) -> None:
    one, two, three = (line.ids[step] for step in (1, 2, 3))
    code = made(line, "code", ("m@step:1", "finetune"))
    chat = made(line, "chat", ("m", "merge"), ("code", "merge"))
    small = made(line, "small", ("chat", "quantize"))
    up = ancestors(line.registry, small)
    assert links(up) == [
        (small, "quantize", chat), (chat, "merge", three), (chat, "merge", code), (three, "continue", two),
        (code, "finetune", one), (two, "continue", one),
    ]  # fmt: skip
    assert [node.id for node in up.nodes] == [small, chat, three, code, two, one]
    assert {node.model for node in up.nodes} == set(line.registry.state.models)
    down = descendants(line.registry, one)
    assert sorted(links(down)) == sorted(links(up)) and down.nodes[0].id == one and down.nodes[-1].id == small
    assert links(descendants(line.registry, chat)) == [(small, "quantize", chat)]
    assert links(descendants(line.registry, small)) == [] == links(ancestors(line.registry, one))
    assert links(ancestors(line.registry, small, depth=1)) == [(small, "quantize", chat)]
    assert len(descendants(line.registry, one, depth=2).nodes) == 5


def test_deleted_ones_are_told_and_the_walk_goes_on_behind_them(line: History) -> None:
    code = made(line, "code", ("m@step:1", "finetune"))
    chat = made(line, "chat", ("m@step:2", "finetune"), ("code", "distill"))
    line.delete(2)
    expected = {
        (chat, "finetune", line.ids[2]), (chat, "distill", code), (line.ids[2], "continue", line.ids[1]),
        (code, "finetune", line.ids[1]),
    }  # fmt: skip
    for state_is_held in (True, False):
        up = ancestors(line.registry, chat)
        assert set(links(up)) == expected
        assert standings(up)[line.ids[2]] == Standing.DELETED != standings(up)[line.ids[1]]
        node = next(node for node in up.nodes if node.id == line.ids[2])
        assert node.model == line.model and (node.state is not None) is state_is_held
        start = resolve_start(line.registry, f"m@{short(line.ids[2])}")
        assert {node.id for node in descendants(line.registry, start).nodes} == {line.ids[2], line.ids[3], chat}
        assert chat in {node.id for node in descendants(line.registry, line.ids[1]).nodes}
        drop_due(line.registry)


def test_what_lies_in_other_stores_is_unknown(line: History, tmp_path: Path) -> None:
    chat = made(line, "chat", ("m", "finetune"))
    twin = twin_of(line.site).registry()
    send(line.registry, twin, "chat", SendOptions())
    found = ancestors(twin, resolve_start(twin, "chat"))
    assert links(found) == [(chat, "finetune", line.ids[3])]
    assert standings(found) == {chat: Standing.HERE, line.ids[3]: Standing.UNKNOWN}
    assert found.nodes[1].model is None
    foreign = new_site(tmp_path / "other", seed=9).registry()
    send(line.registry, foreign, "chat", SendOptions(reseal=True))
    (link,) = ancestors(foreign, resolve_start(foreign, "chat")).links
    assert (link.relation, link.parent) == ("reseal", chat)


def test_behind_a_damaged_body_the_branch_is_followed(line: History) -> None:
    chat = made(line, "chat", ("m", "finetune"))
    body = line.registry.state.models[line.model].checkpoints[line.ids[3]].body
    line.site.backend.delete(body.object_name("body"))
    registry = line.site.registry(cold=True)
    up = ancestors(registry, chat)
    assert [link[1] for link in links(up)] == ["finetune", CONTINUE, CONTINUE]
    assert standings(up)[line.ids[3]] == Standing.UNREADABLE
    assert standings(descendants(registry, line.ids[1]))[line.ids[3]] == Standing.UNREADABLE


def test_who_reads_manifests_sees_it_without_grants_and_others_do_not(line: History) -> None:
    chat = made(line, "chat", ("m", "finetune"))
    reader = join(line.site, "bob", Role.READER).registry()
    assert [link[1] for link in links(ancestors(reader, chat))] == ["finetune", "continue", "continue"]
    auditor = join(line.site, "eve", Role.AUDITOR).registry()
    for walk in (ancestors, descendants):
        with pytest.raises(NotAllowed):
            walk(auditor, chat)


def test_a_walk_ends_at_its_limit_and_says_so(line: History, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ancestors(line.registry, line.ids[3]).complete
    monkeypatch.setattr(walking, "LINEAGE_CHECKPOINTS_MAX", 2)
    for found in (ancestors(line.registry, line.ids[3]), descendants(line.registry, line.ids[1])):
        assert (len(found.nodes), len(found.links), found.complete) == (2, 1, False)


def test_links_in_a_circle_are_followed_once() -> None:
    a, b, c = (CheckpointId(bytes([number]) * 32) for number in range(3))
    circle = {a: Link(a, b, "merge"), b: Link(b, c, "merge"), c: Link(c, a, "merge")}
    seen, found, complete = spread(a, lambda level: [circle[one] for one in level], lambda link: link.parent, None, 9)
    assert (seen, found, complete) == ([a, b, c], list(circle.values()), True)
