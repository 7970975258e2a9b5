"""Signing and asking for signatures at a shell: what is printed, exit codes, and where the demand is noted."""

import json
from pathlib import Path

import pytest

from cairn.cli.app import run
from cairn.store.crypto.dsse import sign_envelope
from tests.cli.conftest import Shell
from tests.support.fixtures import be_new_user
from tests.support.signing import ALICE

REFUSED, USAGE, CONFLICT, NOT_FOUND = 3, 2, 4, 5


@pytest.fixture
def identity(shell: Shell, tmp_path: Path) -> str:
    """The line of a release key, which lies in a file."""
    return shell("identity", "--file", str(tmp_path / "release.key")).strip()


@pytest.fixture
def key(identity: str, tmp_path: Path) -> str:
    return str(tmp_path / "release.key")


@pytest.fixture
def travelled(shell: Shell) -> Shell:
    """A commit here and at the remote `there`, unsigned."""
    shell("commit", str(shell.files), "m", "--step", "1")
    shell("remote", "add", "origin", "there", "--create")
    shell("push", "m")
    return shell


def log_of(shell: Shell, store: str) -> list[dict[str, object]]:
    lines: list[dict[str, object]] = shell.json("--store", store, "audit", "log")
    return lines


def test_from_signing_to_a_clone_that_asks_for_it(travelled: Shell, identity: str, key: str) -> None:
    shell = travelled
    assert "nobody has signed it" in out_and_err(shell, "attest", "show", "m")[1]
    assert shell("sign", "m", "--key", key).startswith("signed m@main as ")
    shell("push", "m")
    error = shell("clone", "there", "copy", "--require-signed", code=REFUSED)
    assert "nobody's signature counts for model 'm'" in error and "cairn trust add" in error
    assert not (shell.folder / "copy").exists()
    assert "count for all models" in shell("trust", "add", identity, "--name", "release")
    out = shell("clone", "there", "copy", "--require-signed")
    assert "1 branch or tag" in out
    assert shell.json("--store", "copy", "remote", "list")["origin"]["require_signed"] is True
    actor = shell("identity", "--file", key, "-q")
    assert actor == shell("trust", "list", "-q") == shell("--store", "copy", "attest", "show", "m", "-q")
    assert shell("attest", "check", "m", "-q") == ""
    envelope = shell.folder / "envelope"
    envelope.write_text(shell("attest", "export", "m"))
    assert shell("attest", "verify", str(envelope), "--signer", identity, "-q") == ""
    rows = shell("--store", "copy", "attest", "show", "m").splitlines()
    assert rows[1].split()[:3] == ["m@main", identity.split(":")[1][:12], "yes"]


def out_and_err(shell: Shell, *arguments: str) -> tuple[str, str]:
    """What a command that succeeds prints on either stream."""
    shell.capture.readouterr()
    assert run(list(arguments)) == 0
    captured = shell.capture.readouterr()
    return captured.out, captured.err


def test_a_pull_says_who_vouches(travelled: Shell, identity: str, key: str) -> None:
    shell = travelled
    shell("clone", "there", "copy")
    shell("sign", "m", "--key", key)
    shell("push", "m")
    shell("trust", "add", identity)
    out = shell("--store", "copy", "pull", "m", "--require-signed")
    assert f"signed by {identity.split(':')[1][:12]}, " in out and "1 signature came along" in out
    facts = shell.json("--store", "copy", "pull", "m", "--require-signed")
    assert facts["vouched_by"] == [identity.split(":")[1]] and facts["signatures"] == 0
    assert shell.json("--store", "copy", "pull", "m")["vouched_by"] is None


def test_each_place_that_can_ask_for_signatures(
    travelled: Shell, identity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = travelled
    shell("clone", "there", "copy")
    shell("trust", "add", identity)
    (shell.files / "new").write_text("new")
    shell("commit", str(shell.files), "m", "--step", "2")
    shell("push", "m")
    before = log_of(shell, "copy")
    refused = [("pull", "m", "--require-signed"), ("pull", "m", "--signer", identity)]
    for arguments in refused:
        error = shell("--store", "copy", *arguments, code=REFUSED)
        assert "'m' means in " in error and "is not signed as 'm@main'" in error and "'cairn sign'" in error
    for value in ("1", "true", "yes", "anything"):
        monkeypatch.setenv("CAIRN_REQUIRE_SIGNED", value)
        shell("--store", "copy", "pull", "m", code=REFUSED)
        shell("clone", "there", "other", code=REFUSED)
    for value in ("", "0", "false", "No", "off"):
        monkeypatch.setenv("CAIRN_REQUIRE_SIGNED", value)
        shell("--store", "copy", "pull", "m@main", "--to", f"free-{value or 'unset'}".lower())
    monkeypatch.delenv("CAIRN_REQUIRE_SIGNED")
    shell("--store", "copy", "remote", "remove", "origin")
    shell("--store", "copy", "remote", "add", "origin", "there", "--require-signed")
    for remote in ("", "origin", "./there", str(shell.folder / "there")):
        shell("--store", "copy", "pull", "m", *filter(None, [remote]), code=REFUSED)
    assert "signed only" in shell("--store", "copy", "remote", "list")
    assert [line for line in log_of(shell, "copy")[len(before) :] if line["ref"] == "main"] == []
    shell("--store", "copy", "pull", "m", "--no-require-signed")
    assert shell.json("--store", "copy", "log", "m")[0]["step"] == 2


def test_options_that_contradict_each_other(travelled: Shell, identity: str) -> None:
    error = travelled("pull", "m", "--no-require-signed", "--signer", identity, code=USAGE)
    assert "name one of them" in error
    travelled("pull", "m", "--signer", "nonsense", code=USAGE)
    travelled("clone", "there", "copy", "--signer", identity[:-1], code=USAGE)


def test_a_push_asks_for_nothing(travelled: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAIRN_REQUIRE_SIGNED", "1")
    (travelled.files / "new").write_text("new")
    travelled("commit", str(travelled.files), "m")
    travelled("push", "m")


def test_a_clone_of_everything_wants_everything_signed(travelled: Shell, identity: str, key: str) -> None:
    shell = travelled
    shell("sign", "m", "--key", key)
    shell("tag", "m", "v1")
    shell("push", "m")
    shell("push", "m@v1")
    assert "'m@v1'" in shell("clone", "there", "copy", "--signer", identity, code=REFUSED)
    assert not (shell.folder / "copy").exists()
    assert shell.json("clone", "there", "copy", "m", "--signer", identity)["refs"] == ["m"]


def test_who_is_trusted_is_this_users_word(travelled: Shell, identity: str) -> None:
    shell, digits = travelled, identity.split(":")[1]
    assert "nobody's signature counts" in out_and_err(shell, "trust", "list")[1]
    shell("trust", "add", identity, "--model", "m", "--model", "n", "--name", "release")
    assert shell.json("trust", "list") == [
        {"signer": digits, "identity": identity, "models": ["m", "n"], "name": "release"}
    ]
    assert "m, n" in shell("trust", "list")
    # It holds for every copy of the tenant's stores.
    assert shell.json("--store", "there", "trust", "list") == shell.json("trust", "list")
    assert "is trusted already" in shell("trust", "add", identity, code=CONFLICT)
    assert "no signer" in shell("trust", "remove", digits[:3], code=NOT_FOUND)
    shell("trust", "remove", digits[:8].upper())
    assert shell.json("trust", "list") == []
    shell("trust", "add", identity)
    assert "no signer" in shell("trust", "remove", "", code=NOT_FOUND), "an unset variable names nobody"
    shell("trust", "remove", identity)
    for name in ("release", identity):
        shell("trust", "add", identity, "--name", "release")
        shell("trust", "remove", name)
    shell("trust", "add", "nonsense", code=USAGE)
    shell("trust", "add", identity, "--model", "", code=USAGE)


def test_a_damaged_list_of_signers_is_no_empty_one(travelled: Shell, identity: str, tmp_path: Path) -> None:
    travelled("trust", "add", identity)
    (path,) = tmp_path.rglob("trust/*.json")
    for damage in ("{", "[]x", '[{"identity":"x"}]', "[1]"):
        path.write_text(damage)
        assert str(path) in travelled("attest", "check", "m", code=6)


def test_a_check_without_a_pull(travelled: Shell, identity: str, key: str) -> None:
    shell = travelled
    shell("attest", "check", "m", "--signer", identity, code=REFUSED)
    shell("sign", "m", "--key", key)
    assert ", signed by " in shell("attest", "check", "m", "--signer", identity)
    assert shell.json("attest", "check", "m", "--signer", identity)["vouched_by"] == [identity.split(":")[1]]
    (shell.files / "new").write_text("new")
    shell("commit", str(shell.files), "m")
    shell("attest", "check", "m", "--signer", identity, code=REFUSED)


def test_what_is_exported_is_checked_with_a_public_key_alone(
    travelled: Shell, identity: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = travelled
    shell("sign", "m", "--key", key)
    checkpoint = json.loads(shell("sign", "m", "--json"))["checkpoint"]
    envelope = shell("attest", "export", "m", "--by", identity.split(":")[1][:10])
    assert set(json.loads(envelope)) == {"payload", "payloadType", "signatures"}
    file = tmp_path / "m.json"
    file.write_text(envelope)
    stranger = shell("identity").strip()
    # Somebody else, with no store at all.
    be_new_user(monkeypatch, tmp_path / "elsewhere")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    out = shell("attest", "verify", str(file), "--signer", identity)
    assert out.startswith(f"m@main is checkpoint {checkpoint}\n")
    statement = shell.json("attest", "verify", str(file), "--signer", identity, "--signer", stranger)
    assert statement["subject"][0]["digest"] == {"cairn-checkpoint-v1": checkpoint}
    error = shell("attest", "verify", str(file), "--signer", stranger, code=REFUSED)
    assert f"but by {identity.split(':')[1][:12]}" in error
    file.write_text(envelope.replace('"payload":"ey', '"payload":"fy'))
    assert "nobody whose key it names" in shell("attest", "verify", str(file), "--signer", identity, code=REFUSED)
    file.write_text("nonsense")
    assert "no signed envelope" in shell("attest", "verify", str(file), "--signer", identity, code=REFUSED)
    shell("attest", "verify", str(file) + "x", "--signer", identity, code=NOT_FOUND)
    shell("attest", "verify", str(tmp_path), "--signer", identity, code=NOT_FOUND)


def test_a_signed_thing_that_is_no_statement(travelled: Shell, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    for kind, payload, told in (("text/plain", b"x", "no statement of in-toto"), (None, b"{}", "no statement about")):
        file.write_bytes(sign_envelope(kind or "application/vnd.in-toto+json", payload, ALICE).encode())
        assert told in travelled("attest", "verify", str(file), "--signer", ALICE.line(), code=REFUSED)


def test_the_log_tells_of_signatures(travelled: Shell, key: str, identity: str) -> None:
    travelled("sign", "m", "--key", key)
    *_, line = travelled.json("audit", "log", "--type", "attest")
    assert (line["model_name"], line["ref"], line["after"]) == ("m", "main", None)
    assert line["facts"]["signer"] == identity.split(":")[1] and "envelope" not in line["facts"]
    told = f" attest  m@main  {line['facts']['checkpoint'][:12]} signed by {identity.split(':')[1][:12]}"
    assert told in travelled("audit", "log")


def test_signing_speaks_json_and_briefly(travelled: Shell, tmp_path: Path) -> None:
    facts = travelled.json("sign", "m@step:1")
    assert facts["ref"] is None and facts["entry"] == 3
    assert travelled("sign", "m", "-q").strip() == facts["checkpoint"]
    (shown, named) = travelled.json("attest", "show", "m")
    assert shown["statement"]["subject"][0]["name"] == "m" and named["envelope"]["signatures"][0]["keyid"]
    assert "no identity in" in travelled("sign", "m", "--key", str(tmp_path / "none"), code=NOT_FOUND)
    (tmp_path / "broken").write_text("zz")
    travelled("sign", "m", "--key", str(tmp_path / "broken"), code=6)
    assert "no statement" in travelled("attest", "export", "m", "--by", "00", code=NOT_FOUND)


def test_an_identity_in_a_file_is_made_once_and_is_private(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "keys" / "release.key"
    line = shell("identity", "--file", str(path))
    assert shell("identity", "--file", str(path)) == line != shell("identity")
    assert path.stat().st_mode & 0o777 == 0o600
    pem = shell("identity", "--file", str(path), "--pem")
    assert (
        pem.startswith("-----BEGIN PUBLIC KEY-----\n")
        and pem.strip() == shell.json("identity", "--file", str(path))["pem"].strip()
    )


def test_names_from_a_remote_cannot_redraw_the_terminal(travelled: Shell, identity: str, key: str) -> None:
    shell = travelled
    name = "\x1b[2Jx"
    shell("branch", "m", name)
    assert "\x1b" not in shell("sign", f"m@{name}", "--key", key)
    assert "\x1b" not in shell("attest", "show", "m") and "\x1b" not in shell("attest", "check", "m", code=REFUSED)
