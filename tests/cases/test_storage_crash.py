"""Group D, killed writers: what they leave, and that it stands in nobody's way."""

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cairn.core.canonical import encode
from cairn.core.ids import RANDOM_ID_BYTES, SessionId
from cairn.registry.session import SessionRecord, session_object
from cairn.store.crypto.objects import ObjectKind, seal_object
from tests.cases.preludes import (
    KILL_IN_CACHE,
    KILL_IN_CHECKOUT,
    SMALL_PACKS,
    fail_at_create,
    kill_after,
    kill_at_create,
    stopped,
)
from tests.cases.shell import Shell, file_size_limit, stored
from tests.support.tensors import safetensors, weights
from tests.support.trees import snapshot

KILLED = -signal.SIGKILL
MIB = 1 << 20


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Nothing inside may wait for what is not there any more."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


def leftovers(shell: Shell) -> list[Path]:
    """Temporary files in the store."""
    return [path for path in shell.store.rglob("*") if path.name.startswith(".")]


def noise(draw: random.Random, size: int) -> bytes:
    """Bytes that nothing compresses and nobody has stored before."""
    return draw.randbytes(size)


# D01 kills 50 saves of 64 MiB; `tests/faults` does that. Here it is a smaller tree, killed a few times.
D01_BYTES = 12 * MIB


def test_D01_a_killed_save_leaves_the_old_checkpoint_or_the_new_one(shell: Shell, draw: random.Random) -> None:
    old = shell.tree({"m.safetensors": safetensors({"w": weights(0, 512, 512)})})
    shell.commit(old)
    committed, killed = [snapshot(old)], 0
    tail = [D01_BYTES + draw.randrange(4000) for _ in range(3)]
    for written in [0, *(draw.randrange(D01_BYTES) for _ in range(2)), *tail]:
        tree = shell.tree({"a.bin": noise(draw, D01_BYTES // 2), "b/c.bin": noise(draw, D01_BYTES // 2)})
        done = shell.spawn("commit", tree, "m", prelude=kill_after(written), code=None)
        assert done.code in (0, KILLED)
        killed += done.code == KILLED
        shell("verify")
        back = shell.back()
        found = snapshot(back)
        assert found == committed[-1] or found == snapshot(tree), "neither the old one nor the new one"
        assert done.code == KILLED or found == snapshot(tree), "what was reported as done is there"
        if found != committed[-1]:
            committed.append(found)
        shutil.rmtree(back)
    assert killed >= 3
    assert len(shell("log", "--json", "m").json) == len(committed)
    used = shell("stats", "--json").json
    assert used["leftover_objects"] or leftovers(shell), "what the dead left can be found"
    shutil.rmtree(shell.folder / "work")


def test_D03_latest_is_committed_and_the_rest_is_listed_as_left_over(shell: Shell) -> None:
    shell.commit({"m.safetensors": safetensors({"w": weights(1, 64, 64)})}, "m", "--step", "100")
    late = shell.tree({"m.safetensors": safetensors({"w": weights(2, 64, 64)})})
    early = shell.tree({"m.safetensors": safetensors({"w": weights(3, 64, 64)})})
    shell.spawn("commit", late, "m", "--step", "200", prelude=kill_at_create(start="log/"), code=KILLED)
    after_200 = shell("stats", "--json").json
    shell.spawn("commit", early, "m", "--step", "300", prelude=kill_at_create(end=".pack"), code=KILLED)
    assert shell("show", "--json", "m@latest").json["step"] == 100
    assert [line["step"] for line in shell("log", "--json", "m").json] == [100]
    for step in ("200", "300"):
        assert "no checkpoint of step" in shell("show", f"m@step:{step}", code=5).err
    used = shell("stats", "--json").json
    assert after_200["leftover_objects"] >= 5 and after_200["leftover_bytes"] > 64 * 64 * 4
    assert used["leftover_objects"] == after_200["leftover_objects"], "300 came to nothing"
    assert len(used["sessions"]) == 2 and used["checkpoints"] == 1
    assert "belong to no checkpoint" in shell("verify", "--full").err
    (tip,) = shell("log", "-q", "m").out.split()
    shell.commit(late, "m", "--step", "200")
    assert shell("log", "-q", "m").out.split()[1] == tip, "the same again, after 100"


SESSIONS = ["killed before its upload", "killed before its entry", "of another host", "of another writer, damaged"]


@pytest.mark.parametrize("kind", SESSIONS)
def test_D12_what_a_dead_writer_left_blocks_nobody(shell: Shell, kind: str) -> None:
    shell.commit({"a": b"first"})
    if kind.startswith("killed"):
        point = kill_at_create(end=".pack") if "upload" in kind else kill_at_create(start="log/")
        shell.spawn("commit", shell.tree({"a": b"second" * 100}), "m", prelude=point, code=KILLED)
    else:
        opened, session = shell.registry().opened, SessionId(os.urandom(RANDOM_ID_BYTES))
        record = encode(SessionRecord(session, 0, os.urandom(32), 0))
        sealed = seal_object(opened.secrets.k_log, opened.store, ObjectKind.SESSION, record, opened.entropy)
        opened.backend.create(session_object(session), [sealed[:-1] if "damaged" in kind else sealed])
        opened.backend.create(f"sessions/{session.hex()}.beat-3", [b""])
    assert len(shell("stats", "--json").json["sessions"]) == 1
    with within(5):
        shell.spawn("commit", shell.tree({"a": b"third"}), "m")
        shell.spawn("tag", "m", "v1")
    assert (shell.back("m@v1") / "a").read_bytes() == b"third"
    shell("verify", "--full", code=6 if "damaged" in kind else 0)


def test_D12_a_writer_killed_inside_the_cache_blocks_nobody(shell: Shell) -> None:
    shell.commit({"a": b"first"})
    shell.close()
    shell.spawn("commit", shell.tree({"a": b"second" * 100}), "m", prelude=KILL_IN_CACHE, code=KILLED)
    with within(5):
        shell.spawn("ls", "m")
        shell.spawn("commit", shell.tree({"a": b"third"}), "m")
    assert len(shell("log", "--json", "m").json) == 3, "its commit had taken effect"
    assert (shell.back() / "a").read_bytes() == b"third"


def test_D12_a_writer_that_hangs_blocks_nobody(shell: Shell) -> None:
    shell.commit({"a": b"first"})
    hang = stopped(kill_at_create(start="log/"))
    stuck = shell.start("commit", shell.tree({"a": b"second" * 100}), "other", prelude=hang)
    try:
        while not list((shell.store / "sessions").glob("*.open")):
            time.sleep(0.01)
        os.waitpid(stuck.pid, os.WUNTRACED)
        with within(5):
            shell.spawn("commit", shell.tree({"a": b"third"}), "m")
        stuck.send_signal(signal.SIGCONT)
        assert stuck.wait(20) == 0
    finally:
        stuck.kill()
        stuck.communicate()
    assert (shell.back() / "a").read_bytes() == b"third"
    assert (shell.back("other") / "a").read_bytes() == b"second" * 100


def test_D17_space_of_five_crashes_is_reclaimed_at_the_next_start(shell: Shell, draw: random.Random) -> None:
    tree = shell.tree({"a.bin": noise(draw, 4 * MIB)})
    for _ in range(5):
        shell.spawn("commit", tree, "m", prelude=kill_after(3 * MIB), code=KILLED)
    assert sum(path.stat().st_size for path in leftovers(shell)) >= 2 * MIB
    shell.spawn("commit", tree, "m")
    assert leftovers(shell) == []
    assert sum(map(len, stored(shell.store).values())) < 4.2 * MIB
    assert len(shell("stats", "--json").json["sessions"]) == 5, "given up by a collector, not by us"


def test_D17_a_live_writers_upload_is_not_reclaimed(shell: Shell, draw: random.Random) -> None:
    hang = stopped(kill_after(2 * MIB))
    alive = shell.start("commit", shell.tree({"a.bin": noise(draw, 4 * MIB)}), "slow", prelude=hang)
    try:
        os.waitpid(alive.pid, os.WUNTRACED)
        (upload,) = leftovers(shell)
        shell.spawn("commit", shell.tree({"b": b"other"}), "m")
        assert upload.exists()
    finally:
        alive.kill()
        alive.communicate()


def test_D17_killed_checkouts_do_not_fill_the_disk(shell: Shell, draw: random.Random) -> None:
    shell.commit({"a.bin": noise(draw, MIB)})
    target = shell.fresh("room")
    target.mkdir()
    for _ in range(5):
        shell.spawn("checkout", "m", target / "out", prelude=KILL_IN_CHECKOUT, code=KILLED)
    shell.spawn("checkout", "m", target / "out")
    assert [path.name for path in target.iterdir()] == ["out"]


def test_D31_staging_is_nothing_after_success(shell: Shell, draw: random.Random) -> None:
    shell.spawn("commit", shell.tree({"a.bin": noise(draw, 4 * MIB)}), "m")
    target = shell.fresh("room") / "out"
    shell.spawn("checkout", "m", target)
    shell.spawn("verify", "--full")
    assert leftovers(shell) == [] and list((shell.store / "sessions").iterdir()) == []
    assert shell("stats", "--json").json["leftover_objects"] == 0
    assert list(target.parent.iterdir()) == [target]
    assert list((shell.folder / "tmp").iterdir()) == []


def test_D31_staging_is_bounded_after_failures(shell: Shell, draw: random.Random) -> None:
    tree = shell.tree({"a.bin": noise(draw, 8 * MIB)})
    for _ in range(2):
        done = shell.spawn("commit", tree, "m", code=1, before=file_size_limit(2 * MIB))
        assert "no space" in done.err.lower() or "too large" in done.err.lower(), done.err
        assert leftovers(shell) == []
    assert sum(map(len, stored(shell.store).values())) < 20_000, "nothing that was not whole is kept"
    failing = SMALL_PACKS + fail_at_create(end=".pack", call=6)
    shell.spawn("commit", tree, "m", code=1, prelude=failing)
    used = shell("stats", "--json").json
    assert 0 < used["leftover_bytes"] < 8 * MIB and used["leftover_objects"] <= 8, "whole packs; listed"
    assert used["sessions"] == [] and leftovers(shell) == []
    shell.spawn("commit", tree, "m")
    assert snapshot(shell.back()) == snapshot(tree)


def test_D31_a_checkout_without_room_leaves_nothing(shell: Shell, draw: random.Random) -> None:
    shell.commit({"a.bin": noise(draw, 3 * MIB), "b.bin": b"small"})
    target = shell.fresh("room") / "out"
    target.mkdir(parents=True)
    done = shell.spawn("checkout", "m", target, code=1, before=file_size_limit(2 * MIB))
    assert "no room" in done.err and "next: " in done.err
    assert list(target.parent.iterdir()) == [target] and list(target.iterdir()) == []
