"""Pushing and pulling, at a user's shell (group H)."""

import random
import subprocess
import time
from pathlib import Path

import pytest

from tests.cases.shell import Shell, stored
from tests.support.trees import snapshot

MIB = 1 << 20


@pytest.fixture
def remote(shell: Shell) -> Path:
    """A remote of the user's store, empty, of the name `origin`."""
    place = shell.folder / "remote"
    shell("remote", "add", "origin", place, "--create")
    return place


def clone(shell: Shell, remote: Path, *selectors: str) -> Path:
    place = shell.fresh("clone")
    shell("clone", remote, place, *selectors)
    return place


def files(number: int, mebibytes: int = 1) -> dict[str, bytes]:
    return {"a.bin": random.Random(number).randbytes(mebibytes * MIB), "note": f"number {number}".encode()}


def test_a_clone_has_what_was_pushed(shell: Shell, remote: Path) -> None:
    tree = shell.tree(files(1))
    checkpoint = shell.commit(tree)["checkpoint"]
    shell("tag", "m", "v1")
    assert "1.0 MiB sent" in shell("push", "m").out
    assert shell("push", "m@v1", "--json").json["bytes_sent"] == 0
    place = clone(shell, remote)
    for store in (shell.work, remote, place):
        out = shell.fresh("out")
        assert shell("log", "m", "-q", "--store", store).out.split() == [checkpoint]
        shell("checkout", "m@v1", out, "--store", store)
        assert snapshot(out) == snapshot(tree)
        shell("verify", "--full", "--store", store)
    assert shell("push", "m").out.endswith("already\n")
    # The clone's own remote is the store that it came from.
    assert shell("remote", "list", "--json", "--store", place).json == {
        "origin": {"url": str(remote), "key_file": None, "require_signed": False}
    }


def test_another_user_needs_the_key_of_the_remote(shell: Shell, remote: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.commit(files(1))
    shell("push", "m")
    keys = (shell.folder / "data/cairn/keys").iterdir()
    (key,) = [path for path in keys if path.stem in (remote / ".cairn/format").read_text()]
    other = Shell(shell.folder / "other")
    other.enter(monkeypatch)
    told = other("clone", remote, "there", code=7).err
    assert "no key file" in told and "next: " in told
    assert not (other.work / "there").exists()
    other("clone", remote, "there", "--key-file", key)
    assert other("log", "m", "--store", "there").out
    other("pull", "m", "--store", "there")


def test_H18_the_revision_that_was_asked_for_is_what_comes(shell: Shell, remote: Path) -> None:
    trees = {step: shell.tree(files(step)) for step in (1, 2)}
    ids = {step: shell.commit(tree, "m", "--step", str(step))["checkpoint"] for step, tree in trees.items()}
    assert "--to" in shell("push", "m@step:1", code=2).err
    assert shell("push", "m@step:1", "--to", "old", "--json").json["checkpoint"] == ids[1]
    assert shell("push", f"m@{ids[2][:10]}", "--to", "new", "-q").out.strip() == ids[2]
    place = clone(shell, remote, "m@old")
    assert shell("log", "m@old", "-q", "--store", place).out.split() == [ids[1]]
    assert shell("pull", "m@new", "--json", "--store", place).json["checkpoint"] == ids[2]
    out = shell.fresh("out")
    shell("checkout", "m@old", out, "--store", place)
    assert snapshot(out) == snapshot(trees[1])


def test_names_of_remotes_and_addresses_are_checked(shell: Shell, remote: Path) -> None:
    assert "next: " in shell("remote", "add", "origin", remote, code=4).err
    assert "no name" in shell("remote", "add", "../x", remote, code=2).err
    assert "no Cairn store" in shell("remote", "add", "empty", shell.fresh("nowhere"), code=3).err
    shell.commit(files(1))
    assert "known: origin" in shell("push", "m", "other", code=5).err
    shell("remote", "remove", "origin")
    assert "no default remote" in shell("push", "m", code=5).err
    shell("push", "m", remote)
    assert "same store" in shell("push", "m", shell.work, code=2).err


def test_a_stranger_is_refused_and_nothing_is_written(shell: Shell, remote: Path) -> None:
    stranger = shell.fresh("stranger")
    shell("init", stranger)
    before = stored(stranger)
    assert "another tenant" in shell("remote", "add", "stranger", stranger, code=7).err
    shell.commit(files(1))
    assert "another tenant" in shell("push", "m", stranger, code=7).err
    assert stored(stranger) == before


def test_H01_H17_a_pull_of_damage_leaves_nothing_that_looks_whole(shell: Shell, remote: Path) -> None:
    shell.commit(files(1))
    shell("push", "m")
    (pack,) = [path for path in (remote / ".cairn/objects").rglob("*.pack") if path.stat().st_size > MIB]
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    told = shell("clone", remote, shell.folder / "clone", code=6).err
    assert "cannot be read" in told and "next: " in told
    assert shell("ls", "m", "--store", shell.folder / "clone", code=5).err
    # The good copy mends the remote, and the pull goes on.
    assert shell("push", "m", "--repair", "--json").json["chunks_sent"] == 1
    shell("pull", "m", "--store", shell.folder / "clone")
    shell("verify", "--full", "--store", shell.folder / "clone")


@pytest.mark.slow
def test_eight_pushes_at_once_are_all_in_the_history(shell: Shell, remote: Path) -> None:
    shell.commit(files(0))
    shell("push", "m")
    places = [clone(shell, remote) for _ in range(8)]
    ids = [
        shell("commit", "-q", shell.tree(files(number)), "m", "--store", place).out.strip()
        for number, place in enumerate(places, start=1)
    ]
    pushes = [shell.start("push", "m", "--rebase", "--store", place) for place in places]
    for process in pushes:
        _, told = process.communicate(timeout=120)
        assert process.returncode == 0, told
    assert set(ids) <= set(shell("log", "m", "-q", "--store", remote).out.split())
    shell("verify", "--full", "--store", remote)


KILLS = 20


@pytest.mark.slow
@pytest.mark.parametrize("what", ["push", "pull"])
def test_H06_a_killed_transfer_goes_on(shell: Shell, remote: Path, what: str, draw: random.Random) -> None:
    """Killed at moments of all its length; each run starts where the last was, so content travels about once."""
    size = 200 * MIB
    tree = shell.tree({"a.bin": draw.randbytes(size)})
    shell.commit(tree, "m")
    target = remote
    if what == "pull":
        shell("push", "m")
        target = clone(shell, remote, "m@main")
        shell.commit(shell.tree({"a.bin": draw.randbytes(size)}), "m")
        shell("push", "m")
    words = ["push", "m"] if what == "push" else ["pull", "m", "--store", str(target)]
    before = packs(target)
    kills, done = 0, False
    while kills < KILLS and not done:
        process, had = shell.start(*words), len(packs(target))
        # Killed as soon as it has got on, and a little later; so each run brings something, whatever its speed.
        while process.poll() is None and len(packs(target)) == had:
            time.sleep(0.002)
        try:
            _, told = process.communicate(timeout=draw.uniform(0.0, 0.05) if kills else 0.0)
            done = process.returncode == 0
            assert done, told
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
    shell.spawn(*words)
    written = sum(length for name, length in packs(target).items() if name not in before)
    print(f"{what}: {kills} kills, {written / size:.2f} times the content written")
    assert kills and written <= 1.1 * size, "packs were sent again"
    out_place = shell.fresh("out")
    shell("checkout", "m", out_place, "--store", target)
    shell("gc", "apply", "--yes", "--store", target)
    assert sum(packs(target).values()) <= 1.01 * (size + sum(before.values())), "leftovers of killed runs stay"
    for folder in ("sessions", "pins"):
        assert not [path for path in (target / ".cairn" / folder).rglob("*") if path.is_file()]
    said = shell("stats", "--json", "--store", target).json
    assert (said["leftover_objects"], said["sessions"]) == (0, [])
    shell("verify", "--full", "--store", target)


def packs(store: Path) -> dict[str, int]:
    """Sizes of the packs of a store, by name."""
    return {path.name: path.stat().st_size for path in (store / ".cairn/objects").rglob("*.pack")}
