"""A store that lies in a bucket or at another URL, from `init` to `verify`, with nothing beside it on this machine."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.cases.shell import Shell
from tests.support.fake_s3 import BUCKET as FAKE_BUCKET
from tests.support.fake_s3 import SECRETS, FakeS3, Fault, Reply, fake_s3, refusal
from tests.support.s3 import BUCKET, Server, fresh_prefix, s3_server
from tests.support.tensors import safetensors, weights

__all__ = ["s3_server"]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    shell.enter(monkeypatch)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    yield shell
    shell.close()


def go_round(shell: Shell, url: str, *, spawn: bool) -> None:
    """All that a user does with a store, there and back."""
    run = shell.spawn if spawn else shell
    tree = shell.tree({"m.safetensors": safetensors({"w": weights(1, 512, 1024)}), "notes/a.txt": b"one"})
    assert f"in {url}" in run("init", "--store", url).out
    first = run("--store", url, "commit", "--json", "--step", "1", tree, "m").json
    assert first["created"] and first["bytes_new"] >= 2 << 20
    (tree / "notes/a.txt").write_bytes(b"two")
    second = run("--store", url, "commit", "--json", "--step", "2", tree, "m").json
    assert (second["chunks_new"], second["chunks_reused"]) == (0, first["chunks_new"])
    assert run("--store", url, "commit", "--step", "2", tree, "m").out.startswith("unchanged")
    for step, text in ((1, b"one"), (2, b"two")):
        back = shell.fresh("back")
        run("--store", url, "checkout", f"m@step:{step}", back)
        assert (back / "notes/a.txt").read_bytes() == text
        assert (back / "m.safetensors").read_bytes() == (tree / "m.safetensors").read_bytes()
    assert [one["step"] for one in run("--store", url, "log", "--json", "m").json] == [2, 1]
    assert run("--store", url, "verify", "--full").out.startswith("intact: 2 checkpoints")
    assert "holds a store already" in run("init", url, code=4).err
    # A machine that has the key and nothing else.
    shell.close()
    (shell.folder / "cache").rename(shell.folder / "old")
    assert [one["name"] for one in run("--store", url, "ls", "--json").json] == ["m"]
    assert not shell.store.exists()


@pytest.mark.s3
@pytest.mark.parametrize("spawn", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_store_in_a_bucket(shell: Shell, s3_server: Server, monkeypatch: pytest.MonkeyPatch, spawn: bool) -> None:
    s3_server.enter(monkeypatch)
    prefix = fresh_prefix()
    go_round(shell, f"s3://{BUCKET}/{prefix}", spawn=spawn)
    assert {"format", "keys", "log", "objects"} <= {
        *s3_server.backend(prefix).folders(),
        *(one.name for one in s3_server.backend(prefix).list()),
    }


def test_a_store_in_memory(shell: Shell) -> None:
    go_round(shell, "memory://place/store", spawn=False)
    MemoryFileSystem.store.clear()


@pytest.mark.s3
def test_a_profile_serves_as_well_as_variables(
    shell: Shell, s3_server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    s3_server.enter(monkeypatch)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    keys = f"aws_access_key_id={s3_server.access_key}\naws_secret_access_key={s3_server.secret_key}\n"
    (shell.folder / "credentials").write_text(f"[mine]\n{keys}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shell.folder / "credentials"))
    url = f"s3://{BUCKET}/{fresh_prefix()}"
    assert "no credentials for S3" in shell("init", url, code=7).err
    monkeypatch.setenv("AWS_PROFILE", "mine")
    shell("init", url)
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert "ProfileNotFound" in shell("--store", url, "ls", code=7).err
    assert s3_server.secret_key not in caplog.text and s3_server.access_key not in caplog.text


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, shell: Shell) -> Iterator[FakeS3]:
    with fake_s3() as fake:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{fake.port}")
        for name, value in zip(("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"), SECRETS, strict=True):
            monkeypatch.setenv(f"AWS_{name}", value)
        yield fake


URL = f"s3://{FAKE_BUCKET}/p"
ENDS: list[tuple[Reply, int, str]] = [
    (refusal(400, "ExpiredToken"), 7, "credentials have expired"),
    (refusal(403, "AccessDenied"), 7, "ask the bucket's owner"),
    (refusal(403, "RequestTimeTooSkewed"), 1, "set this machine's clock"),
    (refusal(404, "NoSuchBucket"), 1, "there is no bucket bucket"),
    (refusal(503, "SlowDown", Retry_After="3600"), 75, "asks to be left alone for 3600 s"),
    (refusal(507, "QuotaExceeded"), 1, "is full"),
]


@pytest.mark.parametrize(("reply", "code", "text"), ENDS)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_refusals_end_with_their_code_and_without_a_secret(
    shell: Shell, fake: FakeS3, caplog: pytest.LogCaptureFixture, reply: Reply, code: int, text: str, method: str
) -> None:
    caplog.set_level(logging.DEBUG)
    tree = shell.tree({"a": b"x" * 1000})
    shell("init", URL)
    fake.script = [Fault(method, None, reply=reply)]
    done = shell("--store", URL, "commit", tree, "m", code=code)
    assert text in done.err
    assert not [secret for secret in (*SECRETS, "AWS4-HMAC") if secret in done.out + done.err + caplog.text]


@pytest.mark.parametrize("call", range(1, 9))
def test_commits_survive_lost_answers(shell: Shell, fake: FakeS3, call: int) -> None:
    tree = shell.tree({"a": b"x" * 1000})
    shell("init", URL)
    shell("--store", URL, "commit", tree, "m")
    (tree / "a").write_bytes(b"y" * 1000)
    fake.script = [Fault("PUT", fake.asked("PUT") + call, effect=True, reply=None)]
    shell("--store", URL, "commit", tree, "m")
    assert len(shell("--store", URL, "log", "--json", "m").json) == 2
    assert shell("--store", URL, "verify", "--full").out.startswith("intact: 2 checkpoints")


def test_an_endpoint_must_be_an_address_over_tls(shell: Shell, fake: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    for endpoint, code in [
        (f"http://{SECRETS[0]}:{SECRETS[2]}@127.0.0.1:1", 2),
        (f"https://h/{SECRETS[2]}", 2),
        (f"https://h?{SECRETS[2]}", 2),
        ("h:99999", 2),
        ("http://h:99999", 2),
        ("http://storage.example", 7),
    ]:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        done = shell("--store", URL, "ls", code=code)
        assert "AWS_" in done.err and not [secret for secret in SECRETS if secret in done.err]
