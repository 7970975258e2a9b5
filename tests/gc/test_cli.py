"""`cairn verify` and `cairn stats` as a user meets them."""

import json
from pathlib import Path

import pytest

from cairn.cli.app import run
from tests.support.fixtures import be_new_user
from tests.support.tensors import safetensors, weights
from tests.support.trees import write_files


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Path:
    """A store in a folder, with a commit; returns the folder of its objects."""
    be_new_user(monkeypatch, tmp_path)
    tree = write_files(tmp_path / "tree", {"m.safetensors": safetensors({"layer\x1b": weights(1, 64, 64)})})
    monkeypatch.chdir(write_files(tmp_path / "work", {}))
    assert run(["init"]) == 0 and run(["commit", str(tree), "net", "--step", "7"]) == 0
    capfd.readouterr()
    return tmp_path / "work" / ".cairn"


def test_verify_of_a_whole_store(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["verify"]) == 0
    assert capfd.readouterr().out.startswith("intact: 1 checkpoint, ")
    assert run(["verify", "--full", "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert (report["ok"], report["full"], report["checkpoints"], report["errors"]) == (True, True, 1, [])
    assert report["chunks"] == report["chunks_opened"] > 0
    assert run(["verify", "-q"]) == 0
    assert capfd.readouterr().out == ""


def test_verify_of_a_damaged_store(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pack = max(store.rglob("*.pack"), key=lambda path: path.stat().st_size)
    name = pack.relative_to(store).as_posix()
    data = bytearray(pack.read_bytes())
    data[100] ^= 1
    pack.chmod(0o600)
    pack.write_bytes(data)
    assert run(["verify"]) == 0, "a quick check does not read chunks"
    assert run(["verify", "--full", "--json"]) == 6
    (error,) = json.loads(capfd.readouterr().out.splitlines()[-1])["errors"]
    assert error["object"] == name and len(error["model"]) == 32 and len(error["checkpoint"]) == 64
    assert "tensor layer\x1b" in error["what"] and "m.safetensors" in error["what"]
    assert run(["verify", "--full"]) == 6
    out = capfd.readouterr().out
    assert out.startswith("DAMAGED: 1 object, 1 affected checkpoint (checked: 1 checkpoint") and name in out
    assert f"affects net@{error['checkpoint'][:12]}" in out and "next: " in out
    assert "\x1b" not in out
    assert run(["verify", "--full", "-q"]) == 6
    assert capfd.readouterr().out == name + "\n"


def test_verify_of_a_store_that_does_not_open(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    init = "log/00000000/000000000000"
    for path in (store / "format", next(store.glob("keys/store/*")), store / init):
        data = path.read_bytes()
        path.chmod(0o600)
        for damaged in (data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], b"", None):
            path.unlink()
            if damaged is not None:
                path.write_bytes(damaged)
            assert run(["verify", "--json"]) == 6
            report = json.loads(capfd.readouterr().out)
            assert not report["ok"] and report["errors"][0]["object"] == path.relative_to(store).as_posix()
            path.touch()
        path.write_bytes(data)
    assert run(["verify", "--full"]) == 0


def test_verify_without_a_store(tmp_path: Path, store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["--store", str(tmp_path / "nowhere"), "verify", "--json"]) == 3
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    assert run(["verify", "--json"]) == 7
    assert capfd.readouterr().out == ""


def test_stats(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["stats", "--json"]) == 0
    used = json.loads(capfd.readouterr().out)
    assert (used["models"], used["checkpoints"], used["log_entries"]) == (1, 1, 3)
    assert used["bytes_logical"] > 64 * 64 * 4 and used["sessions"] == [] and used["leftover_objects"] == 0
    assert run(["stats"]) == 0
    out = capfd.readouterr().out
    assert "dedup ratio" in out and "open sessions   0" in out
