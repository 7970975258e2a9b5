"""Group D, names and places: what lies where, what touches what, and how a commit becomes visible."""

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from cairn.registry.location import backend_at
from cairn.registry.registry import Registry
from cairn.store.backends.contract import Backend
from cairn.store.backends.faults import FaultyBackend
from tests.cases.shell import Shell, stored
from tests.formats.support import torch_file
from tests.support.stores import commit_tree
from tests.support.tensors import safetensors, weights
from tests.support.trees import snapshot

# --- Names are data -----------------------------------------------------------------------------

NAMES = [
    "exp[1]", "a.b", "x y", "\u00e4", "a\u0308", "%2F", "%2e%2e", "+", "#1", "dot.", "..", "../../up", "/abs", ".",
    "-x", "--help",
    "*", "?", "a/b", "a//b", "a\\b", "~", "$HOME", "`id`", "'",
    '"', "new\nline", "tab\t", "\x1b[2J", "\u202e", "\U0001f9ca", " ",
    "CON", "a" * 300, ":", "&", "<script>",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES[::3], ids=ascii)
def test_D09_any_name_of_a_model_and_a_ref(shell: Shell, name: str) -> None:
    text = f"message {name}"
    made = shell.commit({"a": b"1"}, name, f"--message={text}")["checkpoint"]
    later = shell.commit({"a": b"2"}, f"{name}@main")["checkpoint"]
    shell("tag", "--", f"{name}@{made}", name)
    shell("branch", "--", f"{name}@{name}", f"b {name}")
    assert [row["name"] for row in shell("ls", "--json").json] == [name]
    assert [(tag["name"], tag["checkpoint"]) for tag in shell("tag", "--json", "--", name).json] == [(name, made)]
    assert {row["name"] for row in shell("branch", "--json", "--", name).json} == {"main", f"b {name}"}
    shown = shell("show", "--json", "--", f"{name}@{name}").json
    assert (shown["checkpoint"], shown["message"]) == (made, text)
    assert [line["checkpoint"] for line in shell("log", "--json", "--", name).json] == [later, made]
    assert (shell.back(f"{name}@{name}") / "a").read_bytes() == b"1"
    assert (shell.back(name) / "a").read_bytes() == b"2"
    for path in stored(shell.store):
        assert path.isascii() and ".." not in path and not any(word in path for word in ("exp", "abs", "CON", "HOME"))
    for command in (["ls"], ["tag", "--", name], ["log", "--", name], ["show", "--", name]):
        out = shell(*command).out
        assert all(c.isprintable() or c == "\n" for c in out), "nothing that could act on a terminal"
    shell("tag", "-d", "--", name, name)
    shell("verify", "--full")


def test_D09_names_of_all_kinds_stand_beside_each_other(shell: Shell) -> None:
    for number, name in enumerate(NAMES):
        shell.commit({"a": b"%d" % number}, name)
        shell("tag", "--", NAMES[0], name)
    assert sorted(row["name"] for row in shell("ls", "--json").json) == sorted(NAMES)
    assert sorted(tag["name"] for tag in shell("tag", "--json", "--", NAMES[0]).json) == sorted(NAMES)
    for number, name in enumerate(NAMES):
        assert (shell.back(name) / "a").read_bytes() == b"%d" % number


def test_D09_a_model_with_an_at_sign_is_split_at_the_last(shell: Shell) -> None:
    shell.commit({"a": b"1"}, "user@host@main")
    shell.commit({"a": b"2"}, "user@host@dev")
    assert (shell.back("user@host@main") / "a").read_bytes() == b"1"
    assert "no model 'user'" in shell("show", "user@host", code=5).err
    for bad in ("a@b", "latest", "step:4", "", "x" * 20_000):
        assert shell("tag", "--", "user@host@main", bad, code=2).err.startswith(("error: ", "Usage: "))


FILE_NAMES = [name for name in NAMES if "/" not in name and name not in (".", "..") and len(name) < 256]


def test_D09_any_name_of_a_file_a_folder_and_a_tensor(shell: Shell) -> None:
    files = {f"{name}.d/{name}.safetensors": safetensors({name: weights(1, 8, 8)}) for name in FILE_NAMES}
    tree = shell.tree({**files, **dict.fromkeys(FILE_NAMES, b"1"), **{f"folder/{name}": b"2" for name in FILE_NAMES}})
    shell.commit(tree)
    assert snapshot(shell.back()) == snapshot(tree)
    paths = {row["path"] for row in shell("ls", "--json", "m").json}
    assert paths > set(files) | set(FILE_NAMES) | {f"folder/{name}" for name in FILE_NAMES}
    assert len(shell.entries()) == len(FILE_NAMES)
    out = shell("ls", "m").out + shell("show", "--tensors", "m").out
    assert all(c.isprintable() or c == "\n" for c in out)


# --- Places ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", ["a file", "a folder", "a link", "a dead link", "a checkout"])
def test_D11_a_checkout_never_mixes_with_what_is_there(shell: Shell, there: str) -> None:
    shell.commit({"model.safetensors": save({"w": torch.ones(50)})}, "old")
    shell.commit({"model.bin": torch_file({"w": torch.zeros(50)})}, "new")
    place = shell.fresh("room") / "out"
    place.parent.mkdir()
    if there == "a file":
        place.write_bytes(b"mine")
    elif there == "a folder":
        (place / "empty").mkdir(parents=True)
    elif there == "a checkout":
        shell("checkout", "old", place)
    else:
        (place.parent / "target").mkdir()
        place.symlink_to("target" if there == "a link" else "nowhere")
    seen = snapshot(place.parent)
    error = shell("checkout", "new", place, code=3).err
    assert "not an empty folder" in error and "next: " in error
    assert snapshot(place.parent) == seen


CANDIDATES = {
    "safetensors and bin": ("model.safetensors", "pytorch_model.bin"),
    "safetensors and pt": ("a.safetensors", "a.pt"),
    "in a folder below": ("deep/er/model.safetensors", "deep/er/model.ckpt"),
    "shards and bin": ("model-00001-of-00002.safetensors", "pytorch_model.bin"),
}


@pytest.mark.parametrize("names", CANDIDATES.values(), ids=CANDIDATES)
@pytest.mark.parametrize("count", [4, 500], ids=["in line", "tiles"])
def test_D11_two_candidates_for_one_model_are_refused_unless_they_agree(
    shell: Shell, names: tuple[str, str], count: int
) -> None:
    old, new = torch.ones(count), torch.zeros(count)
    clash = {names[0]: save({"w": old}), names[1]: torch_file({"w": new})}
    error = shell.refused(clash, uploads=True)
    assert "two candidates for one model" in error and all(name in error for name in names)
    shapes = {names[0]: save({"w": old}), names[1]: torch_file({"w": old.reshape(2, -1)})}
    assert "two candidates" in shell.refused(shapes, uploads=True)
    shell.commit({names[0]: save({"w": old}), names[1]: torch_file({"w": old})}, "agreeing")
    assert len(shell.entries("agreeing")) == 1
    shell.commit({f"v1/{names[0]}": clash[names[0]], f"v2/{names[1]}": clash[names[1]]}, "in two folders")
    assert len(shell.entries("in two folders")) == 2
    tree = shell.tree(clash)
    shell.commit(tree, "opaque", "--opaque")
    assert snapshot(shell.back("opaque")) == snapshot(tree)


def test_D15_a_store_of_another_node_is_not_touched(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Shell(shell.folder / "other")
    other.enter(monkeypatch)
    other("init")
    seen = stored(other.folder)
    shell.enter(monkeypatch)
    shell.spawn("commit", shell.tree({"a": b"1" * 100_000}), "m")
    shell.spawn("checkout", "m", shell.fresh("back"))
    assert stored(other.folder) == seen
    assert list((shell.folder / "tmp").iterdir()) == []


def test_D15_staging_of_others_is_no_part_of_a_store(shell: Shell) -> None:
    shell.commit({"a": b"1"})
    used = shell("stats", "--json").json
    folder = next(shell.store.glob("objects/*"))
    for name in (".tmp-0123", ".nfs0001", ".DS_Store", ".snapshot"):
        (folder / name).write_bytes(b"x" * 1000)
    (shell.store / "lost+found").mkdir()
    assert shell("stats", "--json").json == used
    shell("verify", "--full")


def test_D15_a_nearer_store_is_used_as_soon_as_it_exists(shell: Shell) -> None:
    tree, below = shell.tree({"a": b"1"}), shell.work / "below"
    below.mkdir()
    time.sleep(0.3)  # older than the tick of the file system
    words = ["sh", "-c", 'cd below && exec "$@"', "-"]
    for _ in range(2):
        shell.spawn("commit", tree, "m", prefix=tuple(words))
    shell.spawn("init", prefix=tuple(words))
    shell.spawn("commit", tree, "m", prefix=tuple(words))
    assert [row["name"] for row in shell("--store", below, "ls", "--json").json] == ["m"]


# --- One small create -----------------------------------------------------------------------------


def test_D21_a_commit_is_one_small_create_and_renames_nothing(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(old: Any, new: Any, *rest: Any, **options: Any) -> None:
        assert str(shell.store) not in f"{old} {new}", "an object was renamed"
        raise OSError("no renames here")

    shell.commit({"a": b"first"})
    for name in ("rename", "renames", "replace"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(shutil, "move", refuse)
    tree = shell.tree({f"{i}.bin": np.random.default_rng(i).bytes(2 << 20) for i in range(3)})
    watcher, opened = shell.registry(), shell.registry().opened
    recorder = FaultyBackend(opened.backend)
    seen: dict[str, int] = {}
    created = recorder.create

    def create(name: str, parts: Any) -> None:
        (model,) = watcher.refresh().models.values()
        assert len(model.checkpoints) == 1, "nothing is visible before the last create"
        created(name, parts)
        seen[name] = opened.backend.size(name)

    monkeypatch.setattr(recorder, "create", create)
    commit_tree(Registry(replace(opened, backend=recorder)), tree, "m")
    assert list(seen)[-1].startswith("log/") and seen[list(seen)[-1]] < 4096
    assert sum(name.startswith("log/") for name in seen) == 1
    assert {call.op for call in recorder.calls} <= {
        "create",
        "read",
        "read_into",
        "size",
        "list",
        "folders",
        "delete",
        "reclaim",
    }
    deleted = [call.name for call in recorder.calls if call.op == "delete"]
    assert all(name.startswith("sessions/") for name in deleted)
    methods = {name for name in dir(Backend) if not name.startswith("_")}
    assert not [name for name in methods if "rename" in name or "move" in name or "copy" in name]


def test_D25_an_operation_touches_only_its_own_item(shell: Shell) -> None:
    variants = {
        "model.safetensors": save({"w": torch.ones(50)}),
        "model.fp16.safetensors": save({"w.fp16": torch.ones(50).half()}),
    }
    shell.commit(variants, "both")
    shell.commit(variants, "both@fp16")
    shell.commit({"model.safetensors": variants["model.safetensors"]}, "other")
    for name in ("v1", "v2"):
        shell("tag", "both@fp16", name)

    def others() -> dict[str, Any]:
        selectors = ("both@fp16", "both@v1", "other")
        return {one: (shell("show", "--json", one).out, snapshot(shell.back(one))) for one in selectors}

    seen = others()
    shell.commit({"model.safetensors": save({"w": torch.zeros(50)})}, "both")
    shell("tag", "-d", "both", "v2")
    shell("branch", "both", "extra")
    shell("branch", "-d", "both", "extra")
    assert "is a tag" in shell("commit", shell.tree({"a": b""}), "both@v1", code=2).err
    shell("tag", "both", "main", "--force", code=4)
    shell("branch", "both", "v1", "--force", code=4)
    shell("tag", "-d", "both", "fp16", code=5)
    shell("branch", "-d", "other", "fp16", code=5)
    assert others() == seen
    back = snapshot(shell.back("both"))
    assert set(back) == {b"model.safetensors"}, "and its own is what was committed, nothing older"


# --- Odd surroundings -----------------------------------------------------------------------------


@pytest.mark.parametrize("destination", [".", "./", "../here", "deep/er/out", "out/", "out/."])
def test_D09_a_destination_may_be_spelled_in_any_way(
    shell: Shell, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.commit({"a": b"1"})
    here = shell.fresh("room") / "here"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    done = shell.any("--store", shell.work, "checkout", "m", destination)
    if (here / destination).resolve() == here:
        assert done.code == 3 and "the working folder cannot be replaced" in done.err and "next: " in done.err
    else:
        assert done.code == 0 and (here / destination / "a").read_bytes() == b"1"
    assert not [path for path in here.parent.rglob(".*") if "partial" in path.name]


@pytest.mark.parametrize("folder", [b"plain", b"a b#c?d", b"%41", b"\xc3\xa4", b"\xff\xfe"], ids=ascii)
def test_D09_a_store_lies_where_its_url_says(shell: Shell, folder: bytes) -> None:
    place = Path(os.fsdecode(os.fsencode(shell.folder) + b"/" + folder))
    done = json.loads(shell("init", "--json", place.as_uri()).out)
    assert (place / "format").exists()
    assert backend_at(done["location"]).read("format") == (place / "format").read_bytes()
    shell("--store", place.as_uri(), "commit", shell.tree({"a": b"1"}), "m")
    assert shell("--store", place, "ls", "-q").out
