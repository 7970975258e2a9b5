"""No credential and no key stands in what a push or pull says, whatever fails under it."""

import logging
from collections.abc import Iterator

import pytest

from tests.cases.shell import Shell
from tests.cli.test_remote_store import ENDS, URL, fake, shell
from tests.support.fake_s3 import SECRETS, FakeS3, Fault, Reply

__all__ = ["fake", "shell"]


@pytest.fixture
def remote(shell: Shell, fake: FakeS3, caplog: pytest.LogCaptureFixture) -> Iterator[FakeS3]:
    """A remote in a bucket that fails by script; all that is logged is kept."""
    caplog.set_level(logging.DEBUG)
    shell("init")
    shell("remote", "add", "origin", URL, "--create")
    shell("commit", shell.tree({"a": b"x" * 100_000}), "m")
    yield fake
    keys = [path.read_text().split()[-1] for path in (shell.folder / "data/cairn/keys").iterdir()]
    assert not [secret for secret in (*SECRETS, "AWS4-HMAC", *keys) if secret in caplog.text]


def said_nothing(out: str) -> bool:
    return not [secret for secret in (*SECRETS, "AWS4-HMAC", "X-Amz-Signature") if secret in out]


@pytest.mark.parametrize(("reply", "code", "text"), ENDS)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_push_that_is_refused(shell: Shell, remote: FakeS3, reply: Reply, code: int, text: str, method: str) -> None:
    remote.script = [Fault(method, None, reply=reply)]
    done = shell("push", "m", code=code)
    assert text in done.err and said_nothing(done.out + done.err)
    remote.script = []
    shell("push", "m")
    assert shell("verify", "--full", "--store", URL).out.startswith("intact: 1 checkpoint")


@pytest.mark.parametrize("method", ["GET", "PUT"])
@pytest.mark.parametrize("effect", [True, False], ids=["answer", "request"])
def test_H15_a_push_survives_every_lost_call(shell: Shell, remote: FakeS3, method: str, effect: bool) -> None:
    shell("push", "m")
    for call in range(1, 12):
        shell("commit", "--always", shell.tree({"a": bytes([call]) * 50_000}), "m")
        remote.script = [Fault(method, remote.asked(method) + call, effect=effect, reply=None)]
        done = shell("push", "m")
        assert said_nothing(done.out + done.err)
    assert shell("verify", "--full", "--store", URL).out.startswith("intact: 12 checkpoints")
