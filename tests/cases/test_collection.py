"""Collection at a user's shell (groups D and H): what clients remember, what is under way, what breaks meanwhile."""

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cairn.core.ids import ModelId
from cairn.gc.collect import Collector
from cairn.gc.roots import named_objects
from cairn.registry.entries_deletion import Drop, Tombstone
from cairn.registry.selectors import resolve
from cairn.registry.stores import open_store
from cairn.store import chunkstore
from tests.cases.preludes import SMALL_PACKS, fail_at_create, fail_at_delete, kill_at_create, stopped
from tests.cases.shell import Shell, stored
from tests.support.fake_s3 import BUCKET, Unfinished, fake_s3
from tests.support.stores import commit_tree, new_site
from tests.support.trees import snapshot, write_files

MIB = 1 << 20
KILLED = -signal.SIGKILL


def noise(seed: int, mebibytes: int = 1) -> dict[str, bytes]:
    """A tree whose content nobody else has."""
    return {"a.bin": random.Random(seed).randbytes(mebibytes * MIB), "note": b"number %d" % seed}


def delete(store: Path, *selectors: str) -> None:
    """Delete checkpoints for good."""
    registry = open_store(store)
    try:
        model, _ = resolve(registry, selectors[0])
        ids = tuple(resolve(registry, one)[1] for one in selectors)
        registry.append(lambda state: Tombstone(ModelId(model), ids, 0, "test"))
        registry.append(lambda state: Drop(ModelId(model), ids))
    finally:
        registry.close()


def leftovers(store: Path) -> set[str]:
    """Objects that nothing names."""
    registry = open_store(store)
    try:
        found = {one.name for one in registry.opened.backend.list("objects")}
        return found - named_objects(registry.refresh())
    finally:
        registry.close()


@contextmanager
def hung(shell: Shell, tree: Path, model: str) -> Iterator[None]:
    """A commit that is stopped just before its entry, goes on when the block ends, and must then succeed."""
    before = len(list((shell.store / "sessions").glob("*.open")))
    writer = shell.start("commit", tree, model, prelude=stopped(kill_at_create(start="log/", call=2)))
    try:
        os.waitpid(writer.pid, os.WUNTRACED)
        assert len(list((shell.store / "sessions").glob("*.open"))) == before + 1
        yield
        writer.send_signal(signal.SIGCONT)
        _, told = writer.communicate(timeout=60)
        assert writer.returncode == 0, told
    finally:
        writer.kill()
        writer.communicate()


# --- What a client remembers -------------------------------------------------------------------------


def test_H03_content_that_a_remote_has_collected_is_sent_again(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = shell.folder / "remote"
    shell("remote", "add", "origin", remote, "--create")
    tree = shell.tree(noise(1, 4))
    shell.commit(tree, "m", "--step", "1")
    shell("push", "m")
    shell.commit(noise(2), "m", "--step", "2")
    shell("push", "m")
    # Another user, who shares no cache with the first one, empties the remote of it.
    keys = (shell.folder / "data/cairn/keys").iterdir()
    (key,) = [path for path in keys if path.stem in (remote / ".cairn/format").read_text()]
    before = sum(map(len, stored(remote).values()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(shell.folder / "other-cache"))
    delete(remote, "m@step:1")
    shell("gc", "apply", "--yes", "--store", remote, "--key-file", key)
    monkeypatch.setenv("XDG_CACHE_HOME", shell.environment["XDG_CACHE_HOME"])
    assert before - sum(map(len, stored(remote).values())) > 3.9 * MIB, "it is gone there"
    shell.commit(tree, "m@again")
    assert shell("push", "m@again", "--json").json["bytes_sent"] > 4 * MIB, "what was sent once is not relied on"
    place = shell.fresh("clone")
    shell("clone", remote, place, "m@again")
    out = shell.fresh("out")
    shell("checkout", "m@again", out, "--store", place)
    assert snapshot(out) == snapshot(tree)
    shell("verify", "--full", "--store", remote)


def test_H22_a_warm_index_offers_nothing_that_another_process_has_collected(shell: Shell) -> None:
    tree = shell.tree(noise(1, 2))
    shell.commit(tree, "m", "--step", "1")
    shell.commit(noise(2), "m", "--step", "2")
    warm = shell.registry()
    assert commit_tree(warm, tree, "warm").counts.bytes_new == 0, "its index knows the content"
    shell.commit(noise(3), "warm")
    for name in ("m@step:1", f"warm@{shell('log', '-q', 'warm').out.split()[-1]}"):
        delete(shell.work, name)
    deleted = shell.spawn("gc", "apply", "--yes", "--json").json
    assert deleted["bytes_deleted"] > 2 * MIB
    again = commit_tree(warm, tree, "m", branch="again")
    assert again.counts.bytes_new > 2 * MIB - 1000
    assert snapshot(shell.back("m@again")) == snapshot(tree)
    shell("verify", "--full")


# --- What is under way -------------------------------------------------------------------------------


def test_H23_what_is_committed_and_was_never_pushed_stays(shell: Shell) -> None:
    shell("remote", "add", "origin", shell.folder / "remote", "--create")
    tree = shell.tree(noise(1))
    shell.commit(tree)
    before = stored(shell.store)
    assert shell("gc", "apply", "--yes", "--json").json["objects_deleted"] == 0
    assert stored(shell.store) == before
    assert snapshot(shell.back()) == snapshot(tree)


def test_H23_what_a_live_writer_has_only_staged_stays(shell: Shell) -> None:
    shell.commit(noise(1), "m", "--step", "1")
    shell.commit(noise(2), "m", "--step", "2")
    tree = shell.tree(noise(3, 2))
    with hung(shell, tree, "staged"):
        delete(shell.work, "m@step:1")
        staged = {name: len(data) for name, data in stored(shell.store).items() if name.endswith(".pack")}
        told = shell("gc", "apply", "--yes", "--wait", "0", code=75).err
        assert "still lives" in told and "next: " in told
        kept = {name: len(data) for name, data in stored(shell.store).items() if name.endswith(".pack")}
        assert kept.items() >= staged.items(), "nothing goes before the writer has ended"
    assert snapshot(shell.back("staged")) == snapshot(tree)
    assert shell("gc", "apply", "--yes", "--json").json["bytes_deleted"] > MIB
    assert snapshot(shell.back("staged")) == snapshot(tree)
    assert leftovers(shell.work) == set()
    shell("verify", "--full")


# --- What breaks meanwhile ---------------------------------------------------------------------------


def trouble(shell: Shell, kind: str, call: int) -> str:
    """A prelude: the storage fails once, and whoever deletes an object afterwards leaves a mark."""
    if kind == "delete":
        return fail_at_delete(start="objects/", call=call, mark=shell.folder / "went-on")
    return fail_at_create(start="log/", call=call)


@pytest.mark.parametrize(
    ("kind", "call"), [("delete", 1), ("delete", 4), ("delete", 9), ("log", 1), ("log", 2), ("log", 3)]
)
def test_H25_a_collection_that_storage_fails_stops_before_the_next_delete(
    shell: Shell, kind: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunkstore, "PACK_BYTES_TARGET", MIB)
    shared = random.Random(0).randbytes(MIB)
    trees = {step: shell.tree({**noise(step), "shared.bin": shared}) for step in range(4)}
    for step, tree in trees.items():
        shell.commit(tree, "m", "--step", str(step))
    shell.spawn("commit", trees[0], "dead", prelude=kill_at_create(start="log/", call=2), code=KILLED)
    delete(shell.work, "m@step:0", "m@step:1")
    shell.close()
    before = stored(shell.store)
    done = shell.spawn("gc", "apply", "--yes", prelude=trouble(shell, kind, call), code=1)
    assert "a fault was injected" in done.err
    assert not (shell.folder / "went-on").exists(), "a delete came after the failure"
    after = stored(shell.store)
    if kind == "delete":
        assert len({name for name in before if name.startswith("objects/")} - set(after)) == call - 1
    if kind == "log" and call < 3:
        assert not {name for name in before if name.startswith("objects/")} - set(after), "nothing was allowed to go"
    for step in (2, 3):
        assert snapshot(shell.back(f"m@step:{step}")) == snapshot(trees[step])
    shell("verify", "--full")
    shell.spawn("gc", "apply", "--yes")
    assert leftovers(shell.work) == set()
    said = shell("stats", "--json").json
    assert (said["leftover_objects"], said["sessions"]) == (0, [])
    for step in (2, 3):
        assert snapshot(shell.back(f"m@step:{step}")) == snapshot(trees[step])
    shell("verify", "--full")


# --- Space -------------------------------------------------------------------------------------------


def test_D17_whole_packs_of_five_crashes_are_freed_by_a_collection(shell: Shell) -> None:
    tree = shell.tree(noise(1, 4))
    for number in range(5):
        (tree / "a.bin").write_bytes(random.Random(number).randbytes(4 * MIB))
        point = kill_at_create(start="log/", call=1 if number else 2)
        shell.spawn("commit", tree, "m", prelude=SMALL_PACKS + point, code=KILLED)
    assert shell("stats", "--json").json["leftover_bytes"] > 18 * MIB
    shell.spawn("commit", tree, "m")
    done = shell("gc", "apply", "--yes", "--json").json
    assert done["sessions_ended"] >= 5 and done["bytes_deleted"] > 15 * MIB
    assert sum(map(len, stored(shell.store).values())) < 4.2 * MIB
    assert shell("stats", "--json").json["sessions"] == []
    assert snapshot(shell.back()) == snapshot(tree)


def test_D31_a_push_stages_nothing(shell: Shell) -> None:
    remote = shell.folder / "remote"
    shell("remote", "add", "origin", remote, "--create")
    tree = shell.tree(noise(1, 16))
    shell.commit(tree)
    shell.close()
    own = set(stored(shell.store))
    homes = sum(path.stat().st_blocks for path in shell.folder.glob("[dsc]*/**/*")) * 512
    shell.spawn("push", "m", prelude=SMALL_PACKS + fail_at_create(end=".pack", call=3), code=1)
    assert 0 < leftover_bytes(remote) < 16.1 * MIB, "whole packs, which the next run goes on from"
    shell.spawn("push", "m", prelude=SMALL_PACKS)
    # The log grows, and what was read is noted until a collector tells the log of it.
    assert all(name.startswith("log/") or name.endswith(".ended") for name in set(stored(shell.store)) - own)
    assert list((shell.folder / "tmp").iterdir()) == []
    grown = sum(path.stat().st_blocks for path in shell.folder.glob("[dsc]*/**/*")) * 512 - homes
    assert grown < 2 * MIB, "what a client remembers of a push is small"
    shell("gc", "apply", "--yes", "--store", remote)
    assert leftover_bytes(remote) == 0
    assert sum(map(len, stored(remote).values())) < 16.5 * MIB


def leftover_bytes(store: Path) -> int:
    """Bytes of objects that nothing names, and of unfinished files."""
    names = leftovers(store)
    return sum(len(data) for name, data in stored(store / ".cairn").items() if name in names or "/." in name)


def test_D19_a_collection_aborts_what_other_tools_left_in_the_bucket(tmp_path: Path) -> None:
    with fake_s3() as fake:
        site = new_site(tmp_path / "home", fake.backend())
        commit_tree(site.registry(), write_files(tmp_path / "tree", noise(1)), "m")
        objects = dict(fake.objects)
        began_ns = site.clock.wall_ns() - 2 * 86_400_000_000_000
        fake.uploads[("p/objects/some.pack", "id")] = Unfinished(began_ns, [5 << 20, 5 << 20], outlive=1)
        Collector(site.registry()).run()
        assert fake.uploads == {}
        assert fake.objects.items() >= objects.items(), "objects stay"


def test_D21_a_bucket_sees_one_small_conditional_put_last(tmp_path: Path) -> None:
    tree = write_files(tmp_path / "tree", noise(1, 6))
    with fake_s3() as fake:
        site = new_site(tmp_path / "home", fake.backend())
        registry = site.registry()
        commit_tree(registry, tree, "m")
        (tree / "a.bin").write_bytes(random.Random(2).randbytes(6 * MIB))
        del fake.requests[:]
        commit_tree(registry, tree, "m")
        puts = [(target, headers) for method, target, headers in fake.requests if method == "PUT"]
        entries = [target for target, _ in puts if "/log/" in target]
        made = [target for target, _ in puts if "/sessions/" not in target]
        assert len(entries) == 1 and made[-1] == entries[0], "the entry comes last, and alone makes it visible"
        assert sum(int(headers["content-length"]) for target, headers in puts if "/log/" in target) < 4096
        assert sum(int(headers["content-length"]) for _, headers in puts) > 6 * MIB
        assert all(headers["if-none-match"] == "*" for _, headers in puts)
        assert not [headers for _, _, headers in fake.requests if any("copy" in name for name in headers)]
        assert {method for method, _, _ in fake.requests} <= {"PUT", "GET", "HEAD", "DELETE"}
        deleted = [target for method, target, _ in fake.requests if method == "DELETE"]
        assert all(target.startswith(f"/{BUCKET}/p/sessions/") for target in deleted), "nothing is moved"
