"""Group X, a hostile or failing disk: whatever it gives back, nothing wrong is ever handed on."""

import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cairn.core.errors import CairnError
from cairn.core.ids import ContentId
from cairn.core.limits import FILE_BLOCK_BYTES
from cairn.registry.registry import Registry
from cairn.store.crypto.chunks import parse_header
from cairn.store.pack import PackedChunk, read_footer
from tests.cases.shell import Shell, stored
from tests.support.stores import checkout_to
from tests.support.tensors import safetensors, weights
from tests.support.trees import snapshot

# --- Chunks ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A sealed chunk on disk."""

    pack: Path
    chunk: PackedChunk

    def read(self) -> bytes:
        data = self.pack.read_bytes()
        return data[self.chunk.offset : self.chunk.offset + self.chunk.length]

    def write(self, sealed: bytes) -> None:
        data = bytearray(self.pack.read_bytes())
        assert len(sealed) == self.chunk.length
        data[self.chunk.offset : self.chunk.offset + self.chunk.length] = sealed
        self.pack.chmod(0o600)
        self.pack.write_bytes(data)


def places(shell: Shell) -> list[Place]:
    """Every data chunk on disk that is as long as the first one, oldest first."""
    opened = shell.registry().opened
    found = []
    for path in sorted(shell.store.rglob("*.pack"), key=lambda path: path.stat().st_mtime_ns):
        name = path.relative_to(shell.store).as_posix()
        for chunk in read_footer(opened.backend, name, opened.secrets.k_index, opened.store):
            if parse_header(Place(path, chunk).read(), name).type == 1:
                found.append(Place(path, chunk))
    return [place for place in found if place.chunk.length == found[0].chunk.length]


def damage_chunks(shell: Shell, how: str) -> ContentId:
    """Damage chunks of a store of two packs; returns the id of one."""
    one = places(shell)[0]
    inside = next(place for place in places(shell) if place.pack == one.pack and place != one)
    other = next(place for place in places(shell) if place.pack != one.pack)
    whole = one.read()
    match how:
        case "replaced by one of the same pack":
            one.write(inside.read())
        case "replaced by one of another pack":
            one.write(other.read())
        case "swapped inside a pack":
            one.write(inside.read())
            inside.write(whole)
        case "swapped between packs":
            one.write(other.read())
            other.write(whole)
        case "bit of the ciphertext":
            one.write(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
        case "bit of the id":
            one.write(whole[:20] + bytes([whole[20] ^ 1]) + whole[21:])
        case "bit of the tag":
            one.write(whole[:-1] + bytes([whole[-1] ^ 128]))
        case "zeros":
            one.write(bytes(len(whole)))
        case "truncated":
            one.pack.chmod(0o600)
            one.pack.write_bytes(one.pack.read_bytes()[: one.chunk.offset + 100])
        case "gone":
            one.pack.unlink()
    return one.chunk.id


X07 = [
    "replaced by one of the same pack", "replaced by one of another pack", "swapped inside a pack",
    "swapped between packs",
    "bit of the ciphertext", "bit of the id", "bit of the tag", "zeros", "truncated", "gone",
]  # fmt: skip


@pytest.mark.parametrize("how", X07)
def test_X07_a_chunk_that_is_not_itself_is_never_handed_on(shell: Shell, how: str) -> None:
    trees = [shell.tree({"x.bin": random.Random(n).randbytes(3 * FILE_BLOCK_BYTES)}) for n in "ab"]
    for tree in trees:
        shell.commit(tree, "m")
    identifier = damage_chunks(shell, how)
    room = shell.fresh("room")
    error = shell("checkout", "m@" + shell("log", "-q", "m").out.split()[1], room / "out", code=6).err
    assert "chunk" in error and "next: " in error
    assert not room.exists() or list(room.iterdir()) == [], "no partial result"
    index = shell.registry().index()
    if how not in ("truncated", "gone"):
        assert index.locations(identifier) == [] and len(index.locations(identifier, marked=True)) == 1, "set aside"
    shell("verify", "--full", code=6)
    again = shell.commit(trees[0], "again")
    assert again["chunks_new"] > 0, "the next good upload takes its place"
    shell.commit(trees[1], "other")
    for model, tree in (("again", trees[0]), ("other", trees[1])):
        if "between" not in how or model == "again":
            assert snapshot(shell.back(model)) == snapshot(tree)


# --- Any object, any way of reading -----------------------------------------------------------------


@contextmanager
def changed(path: Path, data: bytes | None) -> Iterator[None]:
    """Other bytes in a file's place for a while."""
    whole = path.read_bytes()
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        path.write_bytes(whole)


DAMAGES = ["flip", "cut", "empty", "sibling", "gone"]


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("cache", ["warm", "cold"])
def test_X31_X33_no_way_of_reading_passes_on_what_was_changed(
    shell: Shell, how: str, cache: str, draw: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees = {}
    for step in range(2):
        files = {
            "m.safetensors": safetensors({"w": weights(step, 64, 64), "b": weights(9, 70)}),
            "n": b"%d" % step * 500,
        }
        trees[step] = shell.tree(files)
        shell.commit(trees[step], "m", "--step", str(step))
    ways = [
        ["ls", "m@step:0"], ["show", "--tensors", "m@step:1"], ["log", "m"], ["diff", "m@step:0", "m@step:1"],
        ["ls"], ["tag", "m"],
    ]  # fmt: skip
    whole = [shell.any(*way).out for way in ways]
    paths = [path for path in sorted(shell.store.rglob("*")) if path.is_file()]
    for number, path in enumerate(paths):
        data: bytes | None = path.read_bytes()
        assert data is not None
        if how == "flip":
            at = draw.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ draw.randrange(1, 256)]) + data[at + 1 :]
        elif how == "sibling":
            others = [one for one in paths if one.suffix == path.suffix and one.parent.parent == path.parent.parent]
            data = next((one.read_bytes() for one in others if one.read_bytes() != data), None)
        else:
            data = {"cut": data[: len(data) // 2], "empty": b"", "gone": None}[how]
        if cache == "cold":
            monkeypatch.setenv("XDG_CACHE_HOME", str(shell.folder / f"cold{number}"))
        with changed(path, data):
            for way, out in zip(ways, whole, strict=True):
                done = shell.any(*way)
                silent = done.code == 0 and not any(word in done.out + done.err for word in ("damaged", "unreadable"))
                assert not silent or done.out == out, f"{way} after {how} of {path}"
            for step, tree in trees.items():
                place = shell.fresh("back")
                done = shell.any("checkout", f"m@step:{step}", place)
                assert done.code in (0, 3, 5, 6, 7) and (done.code == 0) == place.exists()
                assert done.code or snapshot(place) == snapshot(tree), f"wrong bytes after {how} of {path}"
                shutil.rmtree(place, ignore_errors=True)
        shell.close()


def test_X31_no_setting_turns_checking_off(shell: Shell) -> None:
    shell.commit(
        {"a.bin": random.Random(0).randbytes(9000), "b.bin": random.Random(1).randbytes(9000), "c.bin": b"x" * 9000}
    )
    one, other = places(shell)[:2]
    one.write(other.read())
    for name in ("CAIRN_VERIFY", "CAIRN_NO_VERIFY", "PYTHONOPTIMIZE"):
        shell.spawn("checkout", "m", shell.fresh("back"), env={name: "1"}, code=6)
    for option in ("--no-verify", "--verify=off", "--unsafe", "--force"):
        assert "no such option" in shell("checkout", option, "m", shell.fresh("back"), code=2).err.lower()


def test_X26_concurrent_reads_judge_each_for_itself(shell: Shell) -> None:
    trees = {name: shell.tree({f"{name}.bin": random.Random(name).randbytes(9000)}) for name in ("good", "bad")}
    for name, tree in trees.items():
        shell.commit(tree, name)
    bad = next(place for place in places(shell) if place.pack.stat().st_mtime_ns == max(
        one.pack.stat().st_mtime_ns for one in places(shell)))  # fmt: skip
    whole = bad.read()
    bad.write(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    registry: Registry = shell.registry()
    verdicts: list[tuple[str, bool]] = []

    def read(name: str) -> None:
        for _ in range(10):
            place = shell.fresh(f"{name}-{threading.get_ident()}")
            try:
                checkout_to(registry, name, place)
                verdicts.append((name, snapshot(place) == snapshot(trees[name])))
            except CairnError:
                verdicts.append((name, False))

    threads = [threading.Thread(target=read, args=(name,)) for name in ("good", "bad") * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(set(verdicts)) == [("bad", False), ("good", True)] and len(verdicts) == 60


# --- Trust ----------------------------------------------------------------------------------------


def test_X16_files_of_the_users_own_are_trusted_no_more_than_others(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attacker's store, or parts of it, unpacked by the user over the user's own: same owner, same modes."""
    tree = shell.tree({"a.bin": b"mine" * 100})
    shell.commit(tree, "m")
    attacker = Shell(shell.folder / "attacker")
    attacker.enter(monkeypatch)
    attacker("init")
    attacker.commit({"a.bin": b"evil" * 100}, "m")
    shell.enter(monkeypatch)
    mine = shell.fresh("mine")
    shutil.copytree(shell.store, mine)
    foreign = stored(attacker.store)
    logs = sorted(name for name in foreign if name.startswith("log/"))
    parts: dict[str, list[str]] = {
        "all": list(foreign), "all but the format": [name for name in foreign if name != "format"], "log": logs,
        "init": logs[:1], "entries": logs[1:], "keys": [name for name in foreign if name.startswith("keys/")],
        "objects": [name for name in foreign if name.startswith("objects/")], "format": ["format"],
    }  # fmt: skip
    for part, names in parts.items():
        shutil.rmtree(shell.store)
        if part != "all":
            shutil.copytree(mine, shell.store)
        for name in names:
            (shell.store / name).parent.mkdir(parents=True, exist_ok=True)
            (shell.store / name).write_bytes(foreign[name])
        monkeypatch.setenv("XDG_CACHE_HOME", str(shell.fresh("cold")))
        place = shell.fresh("back")
        done = shell.any("checkout", "m", place)
        if done.code == 0:
            assert snapshot(place) == snapshot(tree), part
        else:
            assert done.code in (3, 5, 6, 7) and not place.exists(), part
        assert part not in ("all", "init", "format", "log") or done.code
    shutil.rmtree(shell.store)
    shutil.copytree(mine, shell.store)
    following = shell.store / sorted(logs)[0].replace("000000000000", "000000000003")
    assert not following.exists()
    following.write_bytes(foreign[logs[-1]])
    assert snapshot(shell.back()) == snapshot(tree), "an entry of a stranger is void"
    assert [row["checkpoints"] for row in shell("ls", "--json").json] == [1]


def test_X16_a_store_inside_a_tree_brings_nothing_along(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile archive may hold a `.cairn/` of its own: it is neither read nor opened without its key."""
    inner = Shell(shell.folder / "inner")
    inner.enter(monkeypatch)
    inner("init")
    inner.commit({"a": b"evil"}, "m")
    shell.enter(monkeypatch)
    tree = shell.tree({"a.bin": b"1" * 1000})
    shutil.copytree(inner.store, tree / ".cairn")
    assert shell.commit(tree)["files"] == 1
    monkeypatch.chdir(tree)
    assert "no key file" in shell("ls", code=7).err
