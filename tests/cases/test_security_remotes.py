"""Group X, on the way between stores: what a push or pull says when it fails, and what it takes over."""

import logging
import random
import shutil
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cairn
from cairn.core.errors import CairnError
from tests.cases.shell import Shell
from tests.cli.test_remote_store import fake
from tests.support.fake_s3 import BUCKET, SECRETS, FakeS3, Fault, Reply, refusal
from tests.support.trees import snapshot

__all__ = ["fake"]

URL = f"s3://{BUCKET}/store"
# Parts of a signed request, beside the credentials.
SIGNED = ("AWS4-HMAC", "X-Amz-Signature", "x-amz-security-token")
ECHO = f"GET /{BUCKET}/store?AWSAccessKeyId={SECRETS[0]}&X-Amz-Security-Token={SECRETS[2]}&X-Amz-Signature=0a1b2c3d"
FAILURES: dict[str, Reply | None] = {
    "denied": refusal(403, "AccessDenied"),
    "signature": refusal(403, "SignatureDoesNotMatch"),
    "query in the text": Reply(400, f"<Error><Code>InvalidRequest</Code><Message>{ECHO}</Message></Error>".encode()),
    "query in the code": Reply(400, f"<Error><Code>{ECHO}</Code></Error>".encode()),
    "query as the answer": Reply(400, ECHO.encode()),
    "moved": Reply(301, b"", {"location": f"https://elsewhere/{ECHO}"}),
    "no answer": None,
}


@pytest.fixture
def remote(shell: Shell, fake: FakeS3, caplog: pytest.LogCaptureFixture) -> Iterator[FakeS3]:
    """A bucket that the user's store knows as `origin`; whatever is logged at any level is searched in the end."""
    caplog.set_level(logging.DEBUG)
    shell("remote", "add", "origin", URL, "--create")
    shell.commit(shell.tree({"a": random.Random(1).randbytes(100_000)}), "m")
    shell("push", "m")
    yield fake
    assert silent(caplog.text)


def silent(text: str) -> bool:
    """Whether a text holds no credential and no part of a signed request."""
    return not [secret for secret in (*SECRETS, *SIGNED, "0a1b2c3d") if secret.lower() in text.lower()]


@pytest.mark.parametrize("reply", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_X10_X27_no_failed_transfer_says_a_secret(
    shell: Shell, remote: FakeS3, reply: Reply | None, method: str
) -> None:
    """Push, pull, clone and the audit, through errors that repeat the request which they are about."""
    shell.commit(shell.tree({"a": random.Random(2).randbytes(100_000)}), "m")
    place = shell.fresh("clone")
    for call in range(1, 3):
        for command in (["push", "m"], ["pull", "m"], ["clone", URL, place], ["audit", "verify", "--store", URL]):
            remote.script = [Fault(method, remote.asked(method) + call, reply=reply)]
            done = shell.any(*command)
            assert silent(done.out + done.err), command
            shutil.rmtree(place, ignore_errors=True)
    remote.script = []
    shell("push", "m")
    for store in (URL, str(shell.work)):
        assert silent(shell("audit", "log", "--json", "--store", store).out)


@pytest.mark.parametrize("reply", [one for one in FAILURES.values() if one], ids=[*FAILURES][:-1])
def test_X27_no_exception_carries_what_was_answered(shell: Shell, remote: FakeS3, reply: Reply) -> None:
    """Nor its causes, in which a program's own log would show it."""
    remote.script = [Fault("GET", None, reply=reply)]
    with pytest.raises(CairnError) as caught:
        cairn.open_store(URL)
    told = "".join(traceback.format_exception(caught.value))
    error: BaseException | None = caught.value
    while error is not None:
        told += repr(error) + repr(error.__dict__)
        error = error.__cause__ or error.__context__
    assert silent(told)


# --- What is taken over ----------------------------------------------------------------------------

CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "a bit": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
    "other bytes": lambda data: random.Random(len(data)).randbytes(len(data)),
    "cut": lambda data: data[: len(data) // 3],
    "nothing": lambda data: b"",
}


def change_packs(folder: Path, change: Callable[[bytes], bytes]) -> Callable[[], None]:
    """Change all packs of a store; returns what puts them back."""
    whole = {path: path.read_bytes() for path in folder.rglob("*.pack")}
    assert whole

    def write(datas: dict[Path, bytes]) -> None:
        for path, data in datas.items():
            path.chmod(0o600)
            path.write_bytes(data)

    write({path: change(data) for path, data in whole.items()})
    return lambda: write(whole)


@pytest.fixture
def peers(shell: Shell) -> Iterator[tuple[Path, Path]]:
    """A committed tree, and the folder of a remote to push it to."""
    tree, other = shell.tree({"a.bin": random.Random(3).randbytes(300_000), "b": b"b" * 999}), shell.fresh("remote")
    shell("remote", "add", "origin", other, "--create")
    shell.commit(tree, "m")
    yield tree, other


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("switch", ["", "CAIRN_VERIFY"])
def test_X31_a_damaged_store_serves_no_peer(
    shell: Shell,
    peers: tuple[Path, Path],
    change: Callable[[bytes], bytes],
    switch: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sender looks at what it sends, whatever is set; nothing appears at the receiver."""
    tree, other = peers
    if switch:
        monkeypatch.setenv(switch, "0")
    mend = change_packs(shell.store, change)
    assert "chunk" in shell("push", "m", code=6).err
    assert shell("verify", "--full", "--store", other).out.startswith("intact: 0 checkpoints")
    mend()
    shell("push", "m")
    out = shell.fresh("out")
    shell("checkout", "m", out, "--store", other)
    assert snapshot(out) == snapshot(tree)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("way", ["pull", "clone"])
def test_X31_X33_what_a_peer_serves_is_looked_at_before_it_is_published(
    shell: Shell, peers: tuple[Path, Path], change: Callable[[bytes], bytes], way: str
) -> None:
    """The remote's packs are overwritten after the push, as by a peer that looks at nothing; caches here are empty."""
    tree, other = peers
    shell("push", "m")
    mend = change_packs(other, change)
    shell.close()
    shutil.rmtree(shell.folder / "cache")
    place = shell.fresh("place")
    command: list[str | Path] = ["clone", other, place]
    if way == "pull":
        shell("remote", "add", "third", place, "--create")
        shell("remote", "add", "origin", other, "--store", place)
        command = ["pull", "m", "--store", place]
    assert "chunk" in shell(*command, code=6).err
    assert shell("verify", "--full", "--store", place).out.startswith("intact: 0 checkpoints")
    mend()
    shell("pull", "m", "--store", place)
    out = shell.fresh("out")
    shell("checkout", "m", out, "--store", place)
    assert snapshot(out) == snapshot(tree)
