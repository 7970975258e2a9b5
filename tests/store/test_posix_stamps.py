"""Stamps of files: what tells one version of an object from another."""

import os
import time
from pathlib import Path

from cairn.store.backends.posix import PosixBackend
from tests.support.doubles import HeldClock


def test_a_stamp_shows_a_change_in_place_whose_time_was_set_back(tmp_path: Path) -> None:
    clock = HeldClock(now_ns=time.time_ns() + 3600 * 10**9)
    posix = PosixBackend(tmp_path, clock=clock)
    posix.create("a", [b"one"])
    (before,) = posix.list()
    status = (tmp_path / "a").stat()
    time.sleep(0.05)  # longer than a tick of the file system's clock
    (tmp_path / "a").write_bytes(b"two")
    os.utime(tmp_path / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
    (after,) = posix.list()
    assert (tmp_path / "a").stat().st_mtime_ns == status.st_mtime_ns and after.size == before.size
    assert b"" != after.stamp != before.stamp != b""


def test_what_changed_lately_has_no_stamp(tmp_path: Path) -> None:
    """A change right after it might not show: a dirty page that is mapped moves no time stamp."""
    posix = PosixBackend(tmp_path)
    posix.create("a", [b"one"])
    assert [listed.stamp for listed in posix.list()] == [b""]
