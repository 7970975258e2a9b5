"""The remembered answer to a commit: given only while nothing at all has changed."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cairn.cli import memo
from tests.cli.conftest import Shell
from tests.support.tensors import safetensors, weights

Settle = Callable[[Path], None]


@pytest.fixture
def remembered(shell: Shell, settle: Settle, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments of a commit whose answer is remembered."""
    settle(shell.files)
    arguments = ["commit", str(shell.files), "m", "--json"]
    commit(shell, arguments, monkeypatch)
    assert memo.recall(arguments) == 0
    return arguments


def commit(shell: Shell, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a commit as the entry point does, where the arguments are the process's own."""
    monkeypatch.setattr("sys.argv", ["cairn", *arguments])
    shell(*arguments)


def test_the_answer_is_the_one_that_the_long_way_gives(shell: Shell, remembered: list[str]) -> None:
    shell.capture.readouterr()
    memo.recall(remembered)
    short = shell.capture.readouterr().out
    assert json.loads(short) == json.loads(shell(*remembered))
    assert not json.loads(short)["created"]


def test_nothing_heavy_is_imported_for_it() -> None:
    source = Path(memo.__file__).read_text()
    imported = [line for line in source.splitlines() if line.startswith(("import ", "from "))]
    assert imported == ["import json", "import os", "import sys", "from hashlib import blake2b"]


def test_a_changed_file_ends_it(shell: Shell, remembered: list[str]) -> None:
    path = shell.files / "sub" / "notes.txt"
    before = path.stat()
    path.write_bytes(b"NOTES")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # the change time gives it away
    assert memo.recall(remembered) is None
    assert json.loads(shell(*remembered))["created"]


@pytest.mark.parametrize("path", ["new", "sub/new"])
def test_a_new_path_ends_it(shell: Shell, remembered: list[str], path: str) -> None:
    (shell.files / path).touch()
    assert memo.recall(remembered) is None


def test_a_removed_path_ends_it(shell: Shell, remembered: list[str]) -> None:
    (shell.files / "sub" / "notes.txt").unlink()
    assert memo.recall(remembered) is None


def test_another_entry_in_the_log_ends_it(shell: Shell, remembered: list[str]) -> None:
    shell("tag", "m", "v")
    assert memo.recall(remembered) is None


@pytest.mark.parametrize("lost", ["objects/*/*.pack", "format", "log/*/*2"])
def test_a_lost_object_ends_it(shell: Shell, remembered: list[str], lost: str) -> None:
    paths = list((shell.folder / ".cairn").glob(lost))
    assert paths
    paths[0].unlink()
    assert memo.recall(remembered) is None


def test_other_arguments_settings_and_folders_have_answers_of_their_own(
    shell: Shell, remembered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert memo.recall([*remembered, "--always"]) is None
    with monkeypatch.context() as patch:
        patch.setenv("CAIRN_KEY_FILE", "other.key")
        assert memo.recall(remembered) is None
    with monkeypatch.context() as patch:
        patch.setenv("CAIRN_PASSPHRASE", "x")
        assert memo.recall(remembered) is None
    monkeypatch.chdir("/")
    assert memo.recall(remembered) is None


def test_a_link_that_leads_elsewhere_ends_it(shell: Shell, settle: Settle, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(shell.files)
    other = shell.folder / "other"
    other.mkdir()
    (other / "x").write_text("x")
    (shell.folder / "current").symlink_to(shell.files)
    commit(shell, ["commit", "current", "m"], monkeypatch)
    assert memo.recall(["commit", "current", "m"]) == 0
    (shell.folder / "current").unlink()
    (shell.folder / "current").symlink_to(other)
    assert memo.recall(["commit", "current", "m"]) is None


def test_files_as_young_as_the_clock_tick_are_not_trusted(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    (shell.files / "model.safetensors").write_bytes(safetensors({"w": weights(5, 64, 64)}))
    commit(shell, ["commit", str(shell.files), "m"], monkeypatch)
    assert memo.recall(["commit", str(shell.files), "m"]) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 1}', "null", "\x00"])
def test_a_damaged_memo_is_as_good_as_none(shell: Shell, remembered: list[str], tmp_path: Path, text: str) -> None:
    (file,) = (tmp_path / "cache" / "cairn" / "answers").iterdir()
    file.write_text(text)
    assert memo.recall(remembered) is None


def test_a_commit_that_must_always_happen_is_never_remembered(
    shell: Shell, settle: Settle, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(shell.files)
    commit(shell, ["commit", str(shell.files), "m", "--always"], monkeypatch)
    assert memo.recall(["commit", str(shell.files), "m", "--always"]) is None


@pytest.mark.parametrize(
    "lost", ["objects/*/*.body", "objects/*/*.root", "objects/*/*.reach", "objects/*/*.index", "keys/*/*"]
)
def test_a_checkpoint_that_cannot_be_read_any_more_ends_it(shell: Shell, remembered: list[str], lost: str) -> None:
    for path in (shell.folder / ".cairn").glob(lost):
        data = path.read_bytes()
        path.unlink()
        assert memo.recall(remembered) is None, path
        path.write_bytes(data)


def test_a_newest_entry_that_was_replaced_ends_it(shell: Shell, remembered: list[str]) -> None:
    newest = max((shell.folder / ".cairn" / "log").rglob("0*[0-9]"), key=lambda path: path.name)
    data = newest.read_bytes()
    newest.unlink()
    newest.write_bytes(data[::-1])
    assert memo.recall(remembered) is None
