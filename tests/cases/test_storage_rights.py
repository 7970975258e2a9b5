"""Group D, stores on disks that allow less: read-only, shared by a group, without links, locks or case."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cairn.core.ids import CheckpointId
from cairn.registry.models import find_model, move_ref
from cairn.registry.registry import Registry
from cairn.workspace import casefold
from tests.cases.preludes import LOCKS_THAT_ALWAYS_SUCCEED, NO_LINKS, kill_at_create
from tests.cases.shell import PASSPHRASE_MARK, ROOT, Shell, command, stored, without_override
from tests.support.rivals import interleaved
from tests.support.tensors import safetensors, weights
from tests.support.trees import snapshot

FILES = {"m.safetensors": safetensors({"w": weights(1, 64, 64)}), "b/c.json": b"{}"}

# --- Read-only --------------------------------------------------------------------------------

READING = (
    ["ls"], ["ls", "m"], ["log", "m"], ["show", "--tensors", "m"], ["diff", "m@v1", "m"], ["tag", "m"],
    ["branch", "m"],
    ["stats"], ["verify"], ["verify", "--full"],
)  # fmt: skip
WRITING = (["tag", "m", "v2"], ["branch", "m", "b"], ["tag", "-d", "m", "v1"])
_BIND = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'


def can_mount() -> bool:
    """Whether this user may make a read-only mount for himself."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["unshare", "-m", "sh", "-c", _BIND, folder, "true"]
        return shutil.which("unshare") is not None and subprocess.run(words, capture_output=True).returncode == 0


def read_only(shell: Shell, how: str) -> tuple[tuple[str, ...], Callable[[], None] | None]:
    """Prefix and preparation of commands that see a read-only store."""
    if how == "mount":
        if not can_mount():
            pytest.skip("needs the right to mount")
        return ("unshare", "-m", "sh", "-c", _BIND, str(shell.store)), None
    subprocess.run(["chmod", "-R", "a-w", str(shell.store)], check=True)
    return (), without_override


@pytest.fixture
def filled(shell: Shell) -> Iterator[Shell]:
    """A store with a checkpoint and a tag."""
    shell.commit(FILES, "m", "-m", "first")
    shell("tag", "m", "v1")
    yield shell
    subprocess.run(["chmod", "-R", "u+w", str(shell.folder)], check=True)


@pytest.mark.parametrize("how", ["mount", "modes"])
@pytest.mark.parametrize("home", ["a home", "a new home", "a read-only home"])
def test_D13_reading_needs_no_right_to_write(filled: Shell, how: str, home: str) -> None:
    shell = filled
    prefix, before = read_only(shell, how)
    env = {}
    if home != "a home":
        rest = shell.fresh("home")
        rest.mkdir(mode=0o500 if "read-only" in home else 0o700)
        env = {"XDG_STATE_HOME": str(rest), "XDG_CACHE_HOME": str(rest)}
        before = without_override
    seen, place = stored(shell.store), shell.fresh("back")
    reading = [*READING, ["checkout", "m@v1", place]]
    for arguments, done in zip(reading, shell.spawn_all(*reading, prefix=prefix, before=before, env=env), strict=True):
        assert done.code == 0, f"{arguments}: {done.err}"
    assert {name.decode(): entry[-1] for name, entry in snapshot(place).items() if entry[0] == "file"} == FILES
    for done in shell.spawn_all(*WRITING, prefix=prefix, before=before, env=env):
        assert done.code in (4, 7) and done.err.startswith("error: ")
    other = shell.tree({"new": b"x" * 1000})
    done = shell.spawn("commit", other, "m", prefix=prefix, before=before, env=env, code=7)
    assert "nothing was changed" in done.err
    assert stored(shell.store) == seen


def test_D13_a_home_that_keeps_no_identity_makes_no_store(shell: Shell) -> None:
    """Otherwise the next command is signed by somebody who owns nothing."""
    home = shell.fresh("home")
    home.mkdir(mode=0o500)
    work = shell.fresh("place")
    env = {"XDG_STATE_HOME": str(home), "CAIRN_PASSPHRASE": PASSPHRASE_MARK}
    done = shell.spawn("init", "--passphrase", work, before=without_override, env=env, code=None)
    if done.code == 0:
        shell.spawn("--store", work, "commit", shell.tree({"a": b"1"}), "m", before=without_override, env=env)
    else:
        assert done.code == 7 and "identity" in done.err


# --- A shared folder ----------------------------------------------------------------------------


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs to become two other users")
def test_D27_two_members_of_a_group_share_a_store() -> None:
    group, one, other = 20_000, 20_001, 20_002
    with tempfile.TemporaryDirectory(prefix="cairn-group-") as place:
        os.chmod(place, 0o755)
        shared = Path(place) / "shared"
        shared.mkdir()
        os.chown(shared, one, group)
        os.chmod(shared, 0o2775)

        def member(uid: int, *arguments: str | Path, code: int | None = 0) -> str:
            """Run a command as a member of the group; reading the interpreter, wherever it lies, is allowed."""
            home = Path(place) / str(uid)
            home.mkdir(exist_ok=True)
            os.chown(home, uid, group)
            reads = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
            words = ["setpriv", f"--reuid={uid}", f"--regid={group}", "--clear-groups", *reads, "--"]
            folders = {f"XDG_{name}_HOME": str(home / name) for name in ("DATA", "STATE", "CACHE")}
            env = {**os.environ, **folders, "PYTHONPATH": str(ROOT / "src"), "CAIRN_KEY_FILE": str(shared / "key")}
            env |= {"PYTHONDONTWRITEBYTECODE": "1", "HOME": str(home)}
            done = subprocess.run(
                [*words, *command(), *map(str, arguments)], cwd=shared, env=env, preexec_fn=lambda: os.umask(0o002),
                capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert code in (None, done.returncode), done.stderr
            return done.stdout + done.stderr

        files = Path(place) / "files"
        files.mkdir(mode=0o755)
        member(one, "init", ".", "--key-file", shared / "key")
        for number, uid in enumerate((one, one)):
            (files / "a").write_bytes(b"%d" % number * 100_000)
            member(uid, "commit", files, "m")
        for path in (shared / ".cairn").rglob("*"):
            status = path.stat()
            assert status.st_gid == group, f"{path} left the group"
            assert status.st_mode & 0o060 == (0o060 if path.is_dir() else status.st_mode & 0o060), path
            assert status.st_mode & 0o040, f"{path} cannot be read by the group"
            assert not path.is_dir() or status.st_mode & 0o2020 == 0o2020, f"{path} cannot be used by the group"
        for arguments in (
            ["ls"],
            ["show", "m"],
            ["verify", "--full"],
            ["checkout", "m", Path(place) / "20002" / "out"],
        ):
            member(other, *arguments)
        assert (Path(place) / "20002" / "out" / "a").read_bytes() == b"1" * 100_000
        for number, uid in enumerate((other, one, other), 2):
            (files / "a").write_bytes(b"%d" % number * 100_000)
            member(uid, "commit", files, "m")
        member(one, "verify", "--full")
        assert list((shared / ".cairn" / "sessions").iterdir()) == []


def test_D27_a_writer_without_the_right_is_told_so_before_the_upload(shell: Shell) -> None:
    """Whoever holds the key may write, whatever his identity; if not, nothing is uploaded in vain."""
    shell.commit(FILES)
    seen, tree = stored(shell.store), shell.tree({"new": b"x" * 1000})
    env = {f"XDG_{name}_HOME": str(shell.fresh("home")) for name in ("STATE", "CACHE")}
    done = shell.spawn("commit", tree, "m", env=env, code=None)
    if done.code == 0:
        assert snapshot(shell.back()) == snapshot(tree)
    else:
        assert done.code == 7 and "next: " in done.err and stored(shell.store) == seen


# --- File systems that lack something ---------------------------------------------------------------


@pytest.mark.parametrize("code", ["EPERM", "ENOTSUP", "ENOSYS", "EMLINK"])
def test_D23_a_store_needs_no_links(shell: Shell, code: str) -> None:
    refuse, tree, out = NO_LINKS.format(code=code), shell.tree(FILES), shell.fresh("out")
    for done in shell.spawn_all(["commit", tree, "m"], ["tag", "m", "v1"], ["checkout", "m@v1", out], prelude=refuse):
        assert done.code == 0, done.err
    assert snapshot(out) == snapshot(tree)
    shell("verify", "--full")
    shell("commit", tree, "m", "--always")


def test_D23_a_store_is_made_without_links(shell: Shell) -> None:
    env, place = {"CAIRN_PASSPHRASE": PASSPHRASE_MARK}, shell.fresh("share")
    shell.spawn("init", "--passphrase", place, prelude=NO_LINKS.format(code="EPERM"), env=env)
    shell.spawn("--store", place, "commit", shell.tree(FILES), "m", env=env)


@pytest.mark.parametrize("code", ["EPERM", "ENOTSUP", "ENOSYS", "EMLINK"])
def test_D23_a_home_needs_no_links(shell: Shell, code: str) -> None:
    home, refuse = shell.fresh("home"), NO_LINKS.format(code=code)
    env = {f"XDG_{name}_HOME": str(home / name) for name in ("DATA", "STATE", "CACHE")}
    place = shell.fresh("share")
    shell.spawn("init", place, prelude=refuse, env=env)
    shell.spawn("--store", place, "commit", shell.tree(FILES), "m", prelude=refuse, env=env)


def test_D23_a_link_of_the_tree_that_cannot_be_made_is_an_error(shell: Shell) -> None:
    tree = shell.tree({"a": b"1"})
    (tree / "link").symlink_to("a")
    shell.commit(tree)
    place = shell.fresh("room") / "out"
    done = shell.spawn("checkout", "m", place, prelude=NO_LINKS.format(code="EPERM"), code=1)
    assert "cannot be written" in done.err and list(place.parent.iterdir()) == []


MOVES = 500  # a writer

_MOVER = """
import sys
from pathlib import Path
from cairn.core.errors import RefMoved
from cairn.core.ids import CheckpointId
from cairn.registry.models import find_model, move_ref, ref_value
from cairn.registry.stores import open_store
registry = open_store(Path(sys.argv[1]))
model, targets = find_model(registry, "m"), [CheckpointId(bytes.fromhex(one)) for one in sys.argv[2:4]]
done = refused = 0
while done < int(sys.argv[4]):
    registry.refresh()
    now = ref_value(registry, model, "b")
    try:
        move_ref(registry, model, "b", "branch", now, targets[now == targets[0]])
        done += 1
    except RefMoved:
        refused += 1
print(refused)
"""


@pytest.mark.slow
def test_D28_no_update_of_a_ref_is_lost_where_locks_lock_nothing(shell: Shell) -> None:
    first, second = (shell.commit({"a": text})["checkpoint"] for text in (b"1", b"2"))
    shell("branch", f"m@{first}", "b")
    length = shell("stats", "--json").json["log_entries"]
    shell.close()
    words = [*command()[:1], "-c", LOCKS_THAT_ALWAYS_SUCCEED + _MOVER, str(shell.work), first, second, str(MOVES)]
    movers = [subprocess.Popen(words, env=shell.environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for mover in movers:
        mover.communicate(timeout=300)
    assert [mover.returncode for mover in movers] == [0, 0]
    registry = shell.registry()
    assert registry.state.length == length + 2 * MOVES and not registry.state.voids
    (ref,) = (one for one in shell("branch", "--json", "m").json if one["name"] == "b")
    assert ref["checkpoint"] == first, "an even number of moves, each from the value before it"
    shell("verify")


def test_D28_an_entry_that_comes_just_now_is_no_hole(shell: Shell) -> None:
    """Another writer is first just when the log is looked through for holes."""
    first, second = (CheckpointId(bytes.fromhex(shell.commit({"a": text})["checkpoint"])) for text in (b"1", b"2"))
    rival, opened = shell.registry(), shell.registry().opened
    model = find_model(rival, "m")
    slow = interleaved(
        opened.backend, lambda: move_ref(rival, model, "theirs", "tag", None, first), op="list", name="log/*"
    )
    move_ref(Registry(replace(opened, backend=slow)), model, "ours", "tag", None, second)
    assert [tag["name"] for tag in shell("tag", "--json", "m").json] == ["ours", "theirs"]


def test_D28_writers_do_not_hinder_each_other_where_locks_lock_nothing(shell: Shell) -> None:
    """One writer has written its pack and is about to give it a name when another starts."""
    shell.commit({"a": b"0"})
    go = shell.fresh("go")
    wait = f"""
import os, time
link = os.link
def late(source, name, **options):
    while str(name).endswith(".pack") and not os.path.exists({str(go)!r}):
        time.sleep(0.01)
    link(source, name, **options)
os.link = late
"""
    slow = shell.start("commit", shell.tree({"a": b"1" * 1000}), "slow", prelude=LOCKS_THAT_ALWAYS_SUCCEED + wait)
    try:
        while not list(shell.store.glob("objects/*/.tmp-*")):
            time.sleep(0.01)
        shell.spawn("commit", shell.tree({"b": b"2" * 1000}), "m", prelude=LOCKS_THAT_ALWAYS_SUCCEED)
        go.touch()
        assert slow.wait(30) == 0
    finally:
        slow.kill()
        slow.communicate()


PAIRS = {
    "case": ("File", "file"),
    "suffix": ("a.BIN", "a.bin"),
    "folder": ("Layer/a", "layer/b"),
    "two spellings": ("\u00c4", "a\u0308"),
    "sharp s": ("stra\u00dfe", "STRASSE"),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_D30_names_that_would_become_one_file_are_refused_before_anything_is_written(
    shell: Shell, pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = safetensors({"Layer.W": weights(1, 8, 8), "layer.w": weights(2, 8, 8)})
    tree = shell.tree({pair[0]: b"one", pair[1]: b"other", "m.safetensors": tensors})
    shell.commit(tree)
    assert {"Layer.W", "layer.w"} <= shell.tensors().keys()
    place = shell.fresh("room") / "out"
    monkeypatch.setattr(casefold, "_folds_case", lambda folder: True)
    error = shell("checkout", "m", place, code=3).err
    shown = [ascii(name.split("/")[0])[1:-1] for name in pair]
    assert all(name in error for name in shown) and "folds case" in error and "next: " in error
    assert list(place.parent.iterdir()) == []
    monkeypatch.undo()
    shell.enter(monkeypatch)
    assert snapshot(shell.back()) == snapshot(tree), "the store itself is not affected"
    shell("verify", "--full")


def test_D30_names_that_fold_apart_are_written(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = shell.tree({"Layer.W": b"1", "layer.w2": b"2", "a/b": b"3", "A2/b": b"4"})
    shell.commit(tree)
    monkeypatch.setattr(casefold, "_folds_case", lambda folder: True)
    assert snapshot(shell.back()) == snapshot(tree)


def test_D12_D28_a_dead_writer_is_no_obstacle_where_locks_lock_nothing(shell: Shell) -> None:
    shell.commit({"a": b"0"})
    dying = LOCKS_THAT_ALWAYS_SUCCEED + kill_at_create(start="log/")
    shell.spawn("commit", shell.tree({"a": b"1" * 1000}), "m", prelude=dying, code=-9)
    shell.spawn("commit", shell.tree({"a": b"2" * 1000}), "m", prelude=LOCKS_THAT_ALWAYS_SUCCEED)
    assert (shell.back() / "a").read_bytes() == b"2" * 1000
