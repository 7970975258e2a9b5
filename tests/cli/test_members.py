"""Rights and keys from the command line: an owner and somebody else at one store."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Shell


@contextmanager
def other_user(shell: Shell, name: str) -> Iterator[None]:
    """Be somebody else at the same machine, in the same folder."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("DATA", "STATE", "CACHE"):
            patch.setenv(f"XDG_{variable}_HOME", str(shell.folder.parent / name / variable.lower()))
        yield


def identity_of(shell: Shell, name: str) -> str:
    with other_user(shell, name):
        return shell("identity").strip()


def test_from_stranger_to_reader_to_former_member(shell: Shell) -> None:
    shell("commit", str(shell.files), "llama", "--step", "1")
    shell("commit", str(shell.files), "secret-model")
    line = identity_of(shell, "bob")
    assert line.startswith("cairn-identity:") and identity_of(shell, "bob") == line
    who = line.split(":")[1]
    with other_user(shell, "bob"):
        assert "cairn identity" in shell("ls", code=7)
    assert "reader" in shell("members", "add", line, "reader")
    with other_user(shell, "bob"):
        me = shell.json("whoami")
        assert (me["actor"], me["role"], me["grants"]) == (who, "reader", [])
        assert "cairn grant MODEL IDENTITY --read files" in shell("checkout", "llama", "out", code=7)
    shell("grant", "llama", who[:8], "--read", "weights,files")
    with other_user(shell, "bob"):
        shell("checkout", "llama", "out")
        assert shell.json("whoami")["grants"] == [{"model": "llama", "read": ["weights", "files"], "write": False}]
        assert [row["name"] for row in shell.json("ls") if not row["name"].startswith("<")] == ["llama"]
        assert "llama" in shell("log", "llama", "--json") or shell.json("log", "llama")
        assert "may commit" not in shell("commit", str(shell.files), "llama", "--step", "2", code=7)
        shell("checkout", "secret-model", "out2", code=7)
        told = shell("hold", "add", "llama", "-m", "x", code=7)
        assert f"'cairn members role {who[:12]} writer' lets you commit" in told and "owners do the rest" in told
        shell("verify")
    rows = shell.json("members", "list")
    assert [row["role"] for row in rows] == ["owner", "recovery", "reader"]
    assert rows[2]["grants"][0]["model"] == "llama"
    assert who[:12] in shell("members", "list") == shell("members") and len(shell("members", "list", "-q").split()) == 3
    shell("revoke", "llama", who[:8])
    keys = shell.json("keys", "list")
    assert {row["model"]: row["generations"]["weights"] for row in keys["models"]} == {"llama": 1, "secret-model": 0}
    assert all(row["due"] == [] for row in keys["models"])
    with other_user(shell, "bob"):
        shell("checkout", "llama", "out3", code=7)
    shell("members", "remove", who[:8])
    with other_user(shell, "bob"):
        shell("ls", code=7)
    assert shell.json("members", "list")[2]["role"] is None
    shutil.rmtree("out")
    shell("checkout", "llama", "out")


def test_a_writer_and_models_that_do_not_exist_yet(shell: Shell) -> None:
    line = identity_of(shell, "ann")
    shell("members", "add", line, "writer")
    with other_user(shell, "ann"):
        assert "--create" in shell("commit", str(shell.files), "new", code=7)
    shell("grant", "new", line, "--read", "all", "--write", "--create")
    with other_user(shell, "ann"):
        shell("commit", str(shell.files), "new", "--step", "1")
        shell("tag", "new", "v1")
        shell("tag", "new", "v1", "--delete")
        shell("grant", "new", line, "--write", code=7)
        shell("members", "add", identity_of(shell, "eve"), "owner", code=7)
        shell("keys", "rotate", "new", code=7)
        shell("keys", "export-recovery", "stolen", code=7)
    shell("members", "role", line.split(":")[1][:8], "reader")
    with other_user(shell, "ann"):
        shell("checkout", "new", "out")
        shell("commit", str(shell.files), "new", "--step", "2", code=7)
    shell("grant", "--all", line, "--read", "all")
    shell("commit", str(shell.files), "newer")
    with other_user(shell, "ann"):
        shell("checkout", "newer", "out2")
    shell("revoke", "--all", line)


def test_an_auditor_verifies_and_exports_and_reads_no_name(shell: Shell) -> None:
    """Show 7, by a member."""
    shell("commit", str(shell.files), "llama", "--step", "1")
    line = identity_of(shell, "eve")
    shell("members", "add", line, "auditor")
    shell("keys", "rotate", "llama")
    with other_user(shell, "eve"):
        shell("audit", "verify")
        told = shell("audit", "log", "--json") + shell("audit", "log")
        for kind in ("model.create", "commit", "member", "key.rotate"):
            assert kind in told
        shell("audit", "export", "exported")
        assert "llama" not in told and "model.safetensors" not in told
        for command in (["checkout", "llama", "out"], ["show", "llama"], ["stats"], ["verify"], ["gc", "plan"]):
            shell(*command, code=7)
    shell("grant", "--create", "new", identity_of(shell, "eve"), "--read", "weights", code=3)
    shell("members", "role", line, "writer")
    shell("grant", "llama", line, "--read", "weights", "--write")
    shell("revoke", "llama", line)
    shell("members", "remove", line)
    told = shell("audit", "log")
    for words in ("is auditor", "is writer", "may read weights, write", "may do nothing", "is no member any more"):
        assert f"{line.split(':')[1][:12]} {words}" in told


def test_keys_are_rotated_exported_and_restored(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell("commit", str(shell.files), "llama", "--step", "1")
    shell("keys", "rotate", "llama")
    shell("keys", "rotate", "--due")
    assert shell("keys", "rotate", "--due") == "no rotation is due\n"
    assert "generation 1" in shell("keys", "rewrap")
    listed = shell.json("keys", "list")
    assert (listed["root"], listed["root_due"]) == (1, False)
    shell("keys", "export-recovery", "recovery")
    assert Path("recovery").stat().st_mode & 0o777 == 0o600
    shell("keys", "export-recovery", "recovery", code=4)
    with other_user(shell, "nobody"):
        shell("ls", code=7)
        shell("--key-file", "recovery", "checkout", "llama", "out")
        shell("--key-file", "recovery", "members", "add", identity_of(shell, "nobody"), "owner")
        shell("commit", str(shell.files), "llama", "--step", "2")
    monkeypatch.setenv("CAIRN_NEW_PASSPHRASE", "correct horse")
    shell("keys", "rewrap", "--passphrase")
    assert "CAIRN_PASSPHRASE" in shell("ls", code=7)
    monkeypatch.setenv("CAIRN_PASSPHRASE", "correct horse")
    shell("checkout", "llama", "out2")
    monkeypatch.setenv("CAIRN_NEW_PASSPHRASE", "battery staple")
    shell("keys", "rewrap")
    shell("ls", code=7)
    monkeypatch.setenv("CAIRN_PASSPHRASE", "battery staple")
    shell("verify", "--full")


@pytest.mark.parametrize(
    "arguments",
    [
        ["grant", "m"],
        ["grant", "m", "abcd1234"],
        ["grant", "--all", "m", "abcd1234", "--write"],
        ["grant", "m", "abcd1234", "--read", "everything"],
        ["keys", "rotate"],
        ["keys", "rotate", "m", "--due"],
        ["members", "add", "nonsense", "reader"],
        ["members", "add", "x", "king"],
        ["init", "elsewhere", "--service", "nobody:knows"],
        ["init", "elsewhere", "--service", "aws-kms:x", "--passphrase"],
        ["keys", "rewrap", "--service", "aws-kms:x", "--passphrase"],
    ],
)
def test_what_makes_no_sense_is_wrong_usage(shell: Shell, arguments: list[str]) -> None:
    shell(*arguments, code=2)


def test_people_are_named_shown_and_erased(shell: Shell) -> None:
    me = shell.json("whoami")["actor"]
    assert shell("members", "person", me[:8], "--set", "Ada Example") == f"{me[:12]} is Ada Example\n"
    told = shell.json("members", "person", me)
    assert told["text"] == "Ada Example" and len(told["salt"]) == len(told["commitment"]) == 64
    assert f"{me[:12]} (Ada Example)" in shell("audit", "log")
    assert "Ada Example" in shell("members", "list") and shell.json("members", "list")[0]["person"] == "Ada Example"
    shell("members", "person", me, "--set", "x", "--forget", code=2)
    assert shell("members", "person", me, "--forget") == f"erased who {me[:12]} is\n"
    assert "(Ada" not in shell("audit", "log")
    shell("members", "person", "zz" * 32, code=2)
