"""Pushing to and pulling from a bucket on a real server, whatever is killed meanwhile."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cairn.core.errors import CairnError
from tests.cases.shell import Shell
from tests.support.ports import free_ports
from tests.support.s3 import (
    ACCESS_KEY,
    BUCKET,
    SECRET_KEY,
    Server,
    _answers,
    _command,
    fresh_prefix,
    s3_server,
)
from tests.support.trees import snapshot

__all__ = ["s3_server"]

MIB = 1 << 20
pytestmark = pytest.mark.s3


@pytest.fixture
def url(shell: Shell, s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A remote of the user's store, of the name `origin`, in a bucket."""
    s3_server.enter(monkeypatch)
    place = f"s3://{BUCKET}/{fresh_prefix()}"
    shell("remote", "add", "origin", place, "--create")
    return place


def test_two_stores_and_a_bucket_between_them(shell: Shell, url: str, draw: random.Random) -> None:
    tree = shell.tree({"a.bin": draw.randbytes(9 * MIB), "d/note": b"one"})
    checkpoint = shell.commit(tree, "m", "--step", "1")["checkpoint"]
    assert "9.0 MiB sent" in shell("push", "m").out
    (tree / "d/note").write_bytes(b"two" * 3000)
    newer = shell.commit(tree, "m", "--step", "2")["checkpoint"]
    # One hundredth is new, so about as much travels.
    assert shell("push", "m", "--json").json["bytes_sent"] < 0.015 * 9 * MIB
    place = shell.fresh("clone")
    shell("clone", url, place)
    for store in (shell.work, url, place):
        out = shell.fresh("out")
        shell("checkout", "m", out, "--store", store)
        assert snapshot(out) == snapshot(tree)
        assert shell("verify", "--full", "--store", store).out.startswith("intact")
    assert shell("log", "m", "-q", "--store", place).out.split() == [newer, checkpoint][:1]
    tree_back = shell.tree({"a.bin": b"changed there"})
    there = shell("commit", "-q", tree_back, "m", "--store", place).out.strip()
    shell("push", "m", "--store", place)
    assert shell("pull", "m", "-q").out.strip() == there


@pytest.mark.slow
def test_a_push_survives_the_death_of_the_server(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, draw: random.Random
) -> None:
    ports, place = free_ports(8), shell.fresh("server")
    (place / "data").mkdir(parents=True)
    with started(place, ports) as server:
        server.enter(monkeypatch)
        server.backend().make_bucket()
        tree = shell.tree({"a.bin": draw.randbytes(200 * MIB)})
        shell.commit(tree)
        url = f"s3://{BUCKET}/store"
        shell("remote", "add", "origin", url, "--create")
        push = shell.start("push", "m")
        _until_packs(server, 1)
    # The server is dead now, and the push is under way.
    with started(place, ports, again=server) as server:
        _, told = push.communicate(timeout=300)
        if push.returncode:
            assert "next: " in told, told
            shell("push", "m")
        assert shell("verify", "--full", "--store", url).out.startswith("intact: 1 checkpoint")
        names = [one for one in server.backend("store").list("objects") if one.name.endswith(".pack")]
        assert sum(one.size for one in names) < 1.4 * 200 * MIB
        out = shell.fresh("out")
        shell("checkout", "m", out, "--store", url)
        assert snapshot(out) == snapshot(tree)


@contextmanager
def started(folder: Path, ports: list[int], again: Server | None = None) -> Iterator[Server]:
    """A server that is killed when the block ends; its data stay."""
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(_command(folder, ports), stdout=log, stderr=log, cwd=folder, start_new_session=True)
    try:
        server = Server(ports[-1], ACCESS_KEY, SECRET_KEY)
        assert _answers(process, ports[-1]) if again is None else _is_back(server)
        yield server
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _is_back(server: Server) -> bool:
    """Whether a server that had a store comes to show it again."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if server.backend("store").size("format"):
                return True
        except CairnError:
            time.sleep(0.1)
    return False


def _until_packs(server: Server, count: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = [one for one in server.backend("store").list("objects") if one.name.endswith(".pack")]
        if len(found) >= count:
            return
        time.sleep(0.01)
    raise AssertionError("no pack came")
