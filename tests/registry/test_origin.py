"""What a statement tells of how a checkpoint was made: facts by digest, and nothing that is secret."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from cairn.manifests.schema import Key, Page, ValueEntry, ValuePage
from cairn.manifests.values import encode_value
from cairn.registry.lineage import DeclaredParent
from cairn.registry.models import history, ref_value
from cairn.registry.origin import predicate_of
from cairn.registry.registry import Registry
from cairn.registry.rights import Role
from cairn.store.crypto.components import ComponentClass
from tests.support.hostile import publish_pages
from tests.support.members import give, join
from tests.support.signing import VERSION, signed
from tests.support.stores import Site, commit_tree, tip
from tests.support.trees import write_files

COMMIT, BLAKE3 = "1f" * 20, "2e" * 32
SECRET = "hf_" + "s3cretS3cretS3cretS3cretS3cret99"  # of the form of a token, and none
RECORDED: dict[str, Any] = {
    "code": {"git": "present", "commit": COMMIT, "dirty": True, "patch": "+ a line"},
    "versions": {"python": "3.11.9", "torch": "2.13.0", "cudnn": 90100},
    "argv": ["train.py", "--lr", "1"],
    "environment": {"WORLD_SIZE": "8"},
    "config": {"lr": 1e-3, "layers": [1, 2]},
    "tokenizer": [{"name": "vocab.json", "size": 2, "blake3": BLAKE3}],
    "data": {"ids": ["web", "books"], "mixture": [{"name": "code", "weight": 0.5}], "samples": [0, 640]},
    "topology": {"world_size": 8},
    "extra": {"note": "a note"},
}


def recorded(registry: Registry, value: object) -> dict[str, Any]:
    """The predicate of a checkpoint that records a value as its provenance."""
    entry = ValueEntry(Key("provenance", ()), inline=encode_value(value, "it"))
    pages: dict[ComponentClass, list[Page]] = {ComponentClass.PROVENANCE: [ValuePage((entry,))]}
    return predicate_of(registry, *publish_pages(registry, pages), VERSION)


def dependencies(predicate: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in predicate["buildDefinition"]["resolvedDependencies"]}


def test_what_a_run_recorded_is_told(site: Site) -> None:
    predicate = recorded(site.registry(), RECORDED)
    definition, found = predicate["buildDefinition"], dependencies(predicate)
    config = json.dumps(RECORDED["config"], sort_keys=True, separators=(",", ":")).encode()
    assert definition["externalParameters"]["config"] == {
        "name": "config", "mediaType": "application/json", "digest": {"sha256": hashlib.sha256(config).hexdigest()},
    }  # fmt: skip
    assert definition["internalParameters"]["versions"] == {"python": "3.11.9", "torch": "2.13.0"}
    assert found["code"] == {"name": "code", "digest": {"gitCommit": COMMIT}, "annotations": {"dirty": True}}
    assert found["code: patch"]["digest"] == {"sha256": hashlib.sha256(b"+ a line").hexdigest()}
    assert found["tokenizer: vocab.json"]["digest"] == {"blake3": BLAKE3}
    assert found["data"]["annotations"] == {"ids": ["web", "books", "code"]} and "sha256" in found["data"]["digest"]
    assert predicate["runDetails"]["builder"]["version"] == {"cairn": VERSION}
    text = json.dumps(predicate)
    for kept in ("train.py", "WORLD_SIZE", "a note", "+ a line", "640", "layers"):
        assert kept not in text


def test_every_dependency_says_what_it_is_by_digest(site: Site) -> None:
    for one in dependencies(recorded(site.registry(), RECORDED)).values():
        assert one["digest"] and all(isinstance(value, str) for value in one["digest"].values())


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {"api_key": SECRET}}, {"argv": ["--token", SECRET]}, {"environment": {"TOKEN": SECRET}},
        {"extra": SECRET}, {"data": {"ids": [SECRET]}}, {"data": {"ids": [f"s3://user:{SECRET}@host/x"]}},
        {"data": [f"password={SECRET}"]}, {"versions": {"x": SECRET, SECRET: "x"}}, {"code": {"patch": SECRET}},
        {"code": {"commit": SECRET}}, {"tokenizer": [{"name": SECRET, "blake3": BLAKE3}]}, {"topology": SECRET},
    ],
)  # fmt: skip
def test_nothing_secret_gets_in(site: Site, changes: dict[str, Any]) -> None:
    assert SECRET not in json.dumps(recorded(site.registry(), {**RECORDED, **changes}))


@pytest.mark.parametrize(
    "value",
    [
        {}, [], "text", {"code": []}, {"code": {"commit": 5, "patch": 5, "dirty": 5}}, {"versions": []},
        {"tokenizer": {}}, {"tokenizer": [1, {"blake3": "x"}, {}]}, {"data": 5}, {"data": [[[]]]},
        {"config": {1: 2, "1": (3, b"x")}}, {"config": float("nan")}, {"data": {"ids": {"a": {"b": ["c"]}}}},
        {"versions": {1: 2}},
    ],
)  # fmt: skip
def test_whatever_a_run_recorded_there_is_a_statement(site: Site, value: object) -> None:
    json.dumps(recorded(site.registry(), value), allow_nan=False)


def test_much_is_cut_short_so_that_the_statement_fits(site: Site) -> None:
    many = {f"{number}" * 300: "v" * 300 for number in range(1000)}
    ids = [f"{number:0300}" for number in range(1000)]
    files = [{"name": "n" * 300, "blake3": BLAKE3}] * 1000
    predicate = recorded(site.registry(), {"versions": many, "data": {"ids": ids}, "tokenizer": files})
    assert len(json.dumps(predicate)) < 40_000
    assert signed(site).statement.predicate == predicate


def test_step_parents_and_time(site: Site, tmp_path: Path) -> None:
    registry = site.registry()
    first = commit_tree(registry, write_files(tmp_path / "1", {"a": b"1"}), step=1).checkpoint
    base = commit_tree(registry, write_files(tmp_path / "b", {"a": b"b"}), "base").checkpoint
    commit_tree(
        registry, write_files(tmp_path / "2", {"a": b"2"}), step=2, parents=(DeclaredParent("base", "finetune"),)
    )
    model, checkpoint = tip(registry)
    predicate = predicate_of(registry, model, checkpoint, VERSION)
    assert predicate["buildDefinition"]["externalParameters"] == {"step": 2}
    assert {name: one["digest"] for name, one in dependencies(predicate).items()} == {
        "parent: continue": {"cairn-checkpoint-v1": first.hex()},
        "parent: finetune": {"cairn-checkpoint-v1": base.hex()},
    }
    (line, _) = history(registry, model, ref_value(registry, model, "main"))
    assert predicate["runDetails"]["metadata"] == {"finishedOn": "2026-01-01T00:00:00.000000Z"}
    assert line.saved_at == 1_767_225_600 * 10**9


def test_what_was_not_granted_is_left_out(site: Site) -> None:
    recorded(site.registry(), RECORDED)
    writer = join(site, "writer", Role.WRITER)
    give(site, writer, "m", ComponentClass.FILES, write=True)
    registry = writer.registry()
    predicate = predicate_of(registry, *tip(registry), VERSION)
    assert dependencies(predicate) == {} and "config" not in predicate["buildDefinition"]["externalParameters"]
