"""What each command prints, takes and exits with."""

import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.support.tensors import safetensors, weights


def test_init_says_where_the_key_lies(bare_shell: Shell) -> None:
    facts = bare_shell.json("init")
    assert Path(facts["key_file"]).stat().st_mode & 0o777 == 0o600
    assert Path(facts["location"]) == bare_shell.folder / ".cairn"
    assert "holds a store already" in bare_shell("init", code=4)


def test_init_at_a_url_makes_the_store_at_that_very_place(bare_shell: Shell, tmp_path: Path) -> None:
    url = (tmp_path / "a b").as_uri()
    bare_shell("init", url)
    assert (tmp_path / "a b" / "format").is_file()
    bare_shell("--store", url, "commit", str(bare_shell.files), "m")
    assert [row["name"] for row in bare_shell.json("ls", "--store", url)] == ["m"]


@pytest.mark.parametrize(
    "url", ["file://h/x", "file:///a/../b", "file:///a/%2e%2e/b", "file:///a#x", "file:///a?x=/..", "s3://b/p"]
)
def test_X34_a_url_that_is_no_plain_local_one_is_refused(bare_shell: Shell, url: str) -> None:
    bare_shell("init", url, code=2)
    bare_shell("--store", url, "ls", code=2)


def test_a_store_is_found_upwards_by_option_and_by_variable(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell("commit", str(shell.files), "m")
    below = shell.folder / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert shell.json("ls")
    monkeypatch.chdir("/")
    assert "no .cairn/" in shell("ls", code=3)
    assert shell.json("ls", "--store", str(shell.folder))
    monkeypatch.setenv("CAIRN_STORE", str(shell.folder / ".cairn"))
    assert shell.json("ls")


def test_commit_prints_one_object_with_what_it_did(shell: Shell) -> None:
    first = shell.json("commit", str(shell.files), "m", "--step", "4", "-m", "first")
    assert first["created"] and len(first["checkpoint"]) == 64 and (first["files"], first["tensors"]) == (2, 2)
    assert first["bytes_logical"] == sum(p.stat().st_size for p in shell.files.rglob("*") if p.is_file())
    assert first["bytes_new"] > 0 == first["bytes_reused"] and first["chunks_new"] > 0 == first["chunks_reused"]
    again = shell.json("commit", str(shell.files), "m", "--step", "4", "-m", "first")
    assert not again["created"] and again["checkpoint"] == first["checkpoint"]
    assert again["bytes_new"] == again["chunks_new"] == 0 < again["chunks_reused"]
    other = shell.json("commit", str(shell.files), "m", "--step", "5", "-m", "first")
    assert other["created"] and other["bytes_new"] == 0
    always = shell.json("commit", str(shell.files), "m", "--step", "5", "-m", "first", "--always")
    assert always["created"] and always["checkpoint"] != other["checkpoint"]


def test_quiet_prints_ids_alone(bare_shell: Shell) -> None:
    shell = bare_shell
    store = shell("init", "-q").strip()
    who = shell.json("whoami")
    assert who["store"] == store and shell("whoami", "-q") == shell("identity", "-q") == f"{who['actor']}\n"
    first, second = (shell("commit", str(shell.files), "m", "--step", step, "-q") for step in ("1", "2"))
    assert shell("show", "m@step:1", "-q") == first
    assert shell("lineage", "m", "-q") == second + first
    assert shell.json("lineage", "m") == json.loads(shell("lineage", "m", "--format", "json"))
    assert shell("tag", "m", "v1", "-q") == second and shell("tag", "m", "-q") == "v1\n"
    assert shell("tag", "m@step:1", "v1", "--force", "-q") == first == shell("tag", "m", "v1", "--delete", "-q")
    assert shell("branch", "m", "-q") == "main\n"
    (model,) = shell.json("ls")
    assert shell("keys", "list", "-q") == f"{model['model']}\n"
    assert shell("audit", "log", "-q").split() == [str(line["n"]) for line in shell.json("audit", "log")]
    held = shell.json("hold", "add", f"m@{first[:8]}", "-m", "a case")
    assert (held["model_id"], held["checkpoint"]) == (model["model"], first.strip())
    assert held["hold"] == shell("hold", "list", "-q").strip()
    shell("remote", "add", "origin", "there", "--create")
    assert shell("remote", "list", "-q") == "origin\n"
    shell("push", "m")
    copy = shell("clone", "there", "copy", "-q").strip()
    assert shell.json("--store", "copy", "whoami")["store"] == copy


def test_log_lists_newest_first(shell: Shell) -> None:
    ids = [shell("commit", str(shell.files), "m", "--step", str(step), "-q").strip() for step in (1, 2, 3)]
    lines = shell.json("log", "m")
    assert [line["checkpoint"] for line in lines] == ids[::-1]
    assert [line["step"] for line in lines] == [3, 2, 1] and lines[0]["refs"] == ["main"]
    assert shell("log", "m", "-q", "-n", "2").split() == ids[:0:-1]
    assert [line["step"] for line in shell.json("log", "m@step:2")] == [2, 1]
    assert [line["step"] for line in shell.json("log", f"m@{ids[0][:8]}")] == [1]


def test_checkout_writes_what_was_committed(shell: Shell) -> None:
    shell("commit", str(shell.files), "m")
    shell("checkout", "m", "out")
    for path in shell.files.rglob("*"):
        copy = shell.folder / "out" / path.relative_to(shell.files)
        assert copy.is_dir() if path.is_dir() else copy.read_bytes() == path.read_bytes()
    assert "not an empty folder" in shell("checkout", "m", "out", code=3)
    assert not list(shell.folder.glob(".out*"))


def test_ls_and_show_list_files_and_tensors(shell: Shell) -> None:
    shell("commit", str(shell.files), "m", "--step", "9")
    assert [row["path"] for row in shell.json("ls", "m")] == ["model.safetensors", "sub", "sub/notes.txt"]
    facts = shell.json("show", "m", "--tensors")
    assert facts["step"] == 9 and facts["components"]["weights"]["entries"] == 2
    assert [(row["name"], row["dtype"], row["shape"]) for row in facts["tensors"]] == [
        ("b", "float32", [8]),
        ("w", "float32", [64, 64]),
    ]
    assert "w" in shell("show", "m", "--tensors") and "model.safetensors" in shell("ls", "m")


def test_diff_names_tensors_and_files(shell: Shell) -> None:
    shell("commit", str(shell.files), "m")
    changed = {"w": weights(1, 64, 64), "b": weights(3, 8), "new": weights(4, 2)}
    (shell.files / "model.safetensors").write_bytes(safetensors(changed))
    (shell.files / "sub" / "notes.txt").unlink()
    new = shell("commit", str(shell.files), "m", "-q").strip()
    facts = shell.json("diff", f"m@{shell.json('log', 'm')[1]['checkpoint'][:10]}", "m")
    assert facts["new"] == new and facts["tensors_equal"] == 1
    assert {(row["name"], row["kind"]) for row in facts["tensors"]} == {("b", "changed"), ("new", "added")}
    assert {(row["path"], row["kind"]) for row in facts["files"]} == {
        ("model.safetensors", "changed"),
        ("sub/notes.txt", "removed"),
    }
    assert "0 tensors differ" in shell("diff", "m", "m")


@pytest.mark.parametrize("kind", ["tag", "branch"])
def test_refs_are_made_listed_moved_and_removed(shell: Shell, kind: str) -> None:
    first, second = (shell("commit", str(shell.files), "m", "--step", str(step), "-q").strip() for step in (1, 2))
    shell(kind, "m@step:1", "keep")
    assert {"name": "keep", "checkpoint": first} in shell.json(kind, "m")
    assert "exists" in shell(kind, "m", "keep", code=4)
    shell(kind, "m", "keep", "--force")
    assert {"name": "keep", "checkpoint": second} in shell.json(kind, "m")
    shell(kind, "m", "keep", "--delete")
    assert "keep" not in shell(kind, "m")
    shell(kind, "m", "keep", "--delete", code=5)
    for name in ("latest", "a@b", "step:3", ""):
        shell(kind, "m", name, code=2)


def test_a_commit_moves_the_branch_that_it_names_and_no_tag(shell: Shell) -> None:
    first = shell("commit", str(shell.files), "m", "-q").strip()
    shell("branch", "m", "side")
    second = shell("commit", str(shell.files), "m@side", "--step", "1", "-q").strip()
    assert [row["checkpoint"] for row in shell.json("log", "m@side")] == [second, first]
    assert [row["checkpoint"] for row in shell.json("log", "m@latest")] == [first]
    shell("tag", "m", "v1")
    assert "is a tag" in shell("commit", str(shell.files), "m@v1", code=2)


@pytest.mark.parametrize(
    "name", ["exp[1]", "a.b", "x y", "ä", "%2F", "+", "#1", "../up", "a\nb", "m@x", "n" * 4096, "."]
)
def test_D09_any_name_goes_and_comes_back(shell: Shell, name: str) -> None:
    shell("commit", str(shell.files), f"{name}@main")
    assert [row["name"] for row in shell.json("ls")] == [name]
    shell("tag", f"{name}@main", "v")
    shell("checkout", f"{name}@v", "out")
    assert "\n" not in shell("ls").removesuffix("\n").split("MODEL", 1)[1].split("\n", 1)[1]


@pytest.mark.parametrize("selector", ["", "@", "@main", "m@", "m@step:x", "m@step:"])
def test_what_is_no_selector_is_a_usage_error(shell: Shell, selector: str) -> None:
    shell("commit", str(shell.files), "m")
    shell("log", selector, code=2)


def test_what_is_not_there_is_not_found(shell: Shell) -> None:
    shell("commit", str(shell.files), "m", "--step", "1")
    for selector in ("other", "m@nope", "m@step:2", "m@0000", "m@zz"):
        assert "next:" in shell("log", selector, code=5)
    assert "write NAME=VALUE" in shell("commit", str(shell.files), "m", "--metric", "loss", code=2)
    assert "'cairn branch m main -d'" in shell("tag", "m", "main", code=4)
    assert "write 'main'" in shell("tag", "m", "latest", code=2)
    assert "on 'main' of 'm'\nnext:  'cairn log m'" in shell("show", "m@step:2", code=5)
    assert "'cairn branch m' and 'cairn tag m'" in shell("log", "m@nope", code=5)
    assert "there is nothing" in shell("commit", "absent", "m", code=5)


def test_wrong_keys_and_passphrases_are_refused(
    bare_shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = bare_shell
    shell("init", "a", "--key-file", "a.key")
    shell("init", "b", "--key-file", "b.key")
    shell("--store", "a", "--key-file", "a.key", "ls")
    assert "belongs to store" in shell("--store", "a", "--key-file", "b.key", "ls", code=7)
    assert "no key file" in shell("--store", "a", "ls", code=7)
    monkeypatch.setenv("CAIRN_PASSPHRASE", "correct horse")
    shell("init", "c", "--passphrase")
    shell("--store", "c", "ls")
    monkeypatch.setenv("CAIRN_PASSPHRASE", "wrong")
    error = shell("--store", "c", "ls", code=7)
    assert "does not open" in error and "wrong" not in error.replace("wrong-key", "")
    monkeypatch.delenv("CAIRN_PASSPHRASE")
    monkeypatch.setattr(os, "isatty", lambda descriptor: False)
    assert "CAIRN_PASSPHRASE" in shell("--store", "c", "ls", code=7)


def test_a_store_inside_the_folder_is_left_out(shell: Shell) -> None:
    (shell.folder / "x.txt").write_text("x")
    shell("commit", ".", "m")
    assert [row["path"] for row in shell.json("ls", "m")] == ["x.txt"]
    assert "is a Cairn store itself" in shell("commit", ".cairn", "m", code=3)


def test_a_linked_file_is_committed_under_the_name_it_was_given(shell: Shell) -> None:
    (shell.folder / "link.safetensors").symlink_to(shell.files / "model.safetensors")
    shell("commit", "link.safetensors", "m")
    shell("checkout", "m", "out")
    assert (shell.folder / "out" / "link.safetensors").read_bytes() == (shell.files / "model.safetensors").read_bytes()


def test_control_characters_never_reach_a_terminal(shell: Shell) -> None:
    (shell.files / "a\x1b[31mb").write_text("x")
    shell("commit", str(shell.files), "m\x1b", "-m", "\x1b]0;title\x07\n")
    for arguments in (("ls",), ("ls", "m\x1b"), ("log", "m\x1b"), ("show", "m\x1b"), ("stats",)):
        assert "\x1b" not in shell(*arguments)
    assert "\x1b" not in shell("log", "x\x1b", code=5)
