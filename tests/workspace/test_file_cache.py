"""The file-digest cache: an unchanged file is not read again, a changed one always is."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cairn.core.clock import SystemClock
from cairn.core.errors import BadInput
from cairn.core.limits import RACY_WINDOW_COARSE_NS, RACY_WINDOW_NS
from cairn.workspace.source import FileSource
from tests.support.doubles import HeldClock
from tests.support.stores import Site, checkout_to, commit_tree, new_site
from tests.support.tensors import safetensors, weights
from tests.support.trees import snapshot, write_files


@contextmanager
def counting_reads() -> Iterator[dict[str, int]]:
    """Bytes read, by file."""
    read: dict[str, int] = {}
    real = FileSource.read_into

    def read_into(self: FileSource, offset: int, target: memoryview) -> None:
        if len(target):
            read[self.shown] = read.get(self.shown, 0) + len(target)
        real(self, offset, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileSource, "read_into", read_into)
        yield read


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tensors = {"w": weights(1, 400, 400), "tiny": weights(2, 3)}
    return write_files(tmp_path / "tree", {"a": b"plain " * 1000, "m.safetensors": safetensors(tensors), "empty": b""})


def age(site: Site, tree: Path, by_ns: int) -> None:
    """Set the clock to so long after the newest stamp of the tree."""
    assert isinstance(site.clock, HeldClock)
    stamps = [path.stat() for path in tree.rglob("*")]
    site.clock.now_ns = max(max(stamp.st_mtime_ns, stamp.st_ctime_ns) for stamp in stamps) + by_ns


def read_by(site: Site, tree: Path, **options: object) -> set[str]:
    """Files of which a commit by a process of its own read anything."""
    with counting_reads() as read:
        commit_tree(site.registry(), tree, **options)
    return set(read)


def test_M25_an_unchanged_file_is_not_read_again(site: Site, tree: Path) -> None:
    age(site, tree, 10**10)
    assert read_by(site, tree) == {"a", "m.safetensors"}
    assert read_by(site, tree) == set()
    assert read_by(site, tree, step=2) == set()
    assert read_by(site, tree, branch="other") == set()


def test_what_was_not_read_counts_as_reused(site: Site, tree: Path) -> None:
    age(site, tree, 10**10)
    first = commit_tree(site.registry(), tree)
    again = commit_tree(site.registry(), tree, step=2)
    assert again.counts == first.counts.all_reused()
    assert (again.files, again.tensors, again.bytes_logical) == (first.files, first.tensors, first.bytes_logical)


def test_what_is_remembered_is_remembered_of_one_path_model_and_mode(site: Site, tree: Path, tmp_path: Path) -> None:
    age(site, tree, 10**10)
    read_by(site, tree)
    assert read_by(site, tree, model="other") == {"a", "m.safetensors"}
    assert read_by(site, tree, opaque=True) == {"a", "m.safetensors"}
    tree.rename(tmp_path / "elsewhere")
    assert read_by(site, tmp_path / "elsewhere") == {"a", "m.safetensors"}


def test_only_what_changed_is_read(site: Site, tree: Path, tmp_path: Path) -> None:
    age(site, tree, 10**10)
    read_by(site, tree)
    (tree / "a").write_bytes(b"other " * 1000)
    assert read_by(site, tree) == {"a"}
    checkout_to(site.registry(), "m", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tree)


@pytest.mark.parametrize(
    ("by_ns", "remembered"), [(RACY_WINDOW_NS - 1, False), (RACY_WINDOW_NS + 1, True), (-1, False)]
)
def test_a_stamp_as_young_as_the_tick_proves_nothing(site: Site, tree: Path, by_ns: int, remembered: bool) -> None:
    (tree / "a").unlink()
    (tree / "empty").unlink()
    os.utime(tree / "m.safetensors", ns=(1, 999_999_999))
    age(site, tree, by_ns)
    read_by(site, tree)
    assert (read_by(site, tree) == set()) is remembered


def test_whole_seconds_are_trusted_later(site: Site, tree: Path) -> None:
    for path in tree.iterdir():
        os.utime(path, ns=(0, 5 * 10**9))
    age(site, tree, RACY_WINDOW_COARSE_NS - 10**9)
    read_by(site, tree)
    assert read_by(site, tree) == {"a", "m.safetensors"}
    age(site, tree, RACY_WINDOW_COARSE_NS + 1)
    read_by(site, tree)
    assert read_by(site, tree) == set()


def test_a_rewrite_of_equal_size_and_time_is_noticed_however_fast(tmp_path: Path) -> None:
    """Real files, the real clock: some of these rewrites fall into one tick of the file system."""
    site = new_site(tmp_path / "home", clock=SystemClock())
    path = write_files(tmp_path / "tree", {"a": b"0" * 300}) / "a"
    registry = site.registry()
    for number in range(60):
        path.write_bytes(b"%03d" % number * 100)
        os.utime(path, ns=(10**18, 10**18 + 1))
        commit_tree(registry, tmp_path / "tree", step=number)
    for number in (0, 1, 30, 58, 59):
        checkout_to(registry, f"m@step:{number}", tmp_path / f"out-{number}")
        assert (tmp_path / f"out-{number}" / "a").read_bytes() == b"%03d" % number * 100


def test_a_damaged_record_is_read_anew(site: Site, tree: Path) -> None:
    age(site, tree, 10**10)
    registry = site.registry()
    commit_tree(registry, tree)
    cache = registry.cache
    with cache._read() as transaction:
        assert transaction is not None
        records = {bytes(key): bytes(value) for key, value in transaction.cursor(db=cache._files)}
    assert len(records) == 3
    cache.put_files({key: value[:-1] + bytes([value[-1] ^ 1]) for key, value in records.items()})
    assert read_by(site, tree) == {"a", "m.safetensors"}


def test_records_show_no_digest(site: Site, tree: Path) -> None:
    age(site, tree, 10**10)
    registry = site.registry()
    commit_tree(registry, tree)
    digest = registry.opened.keys.chunk.digest((tree / "a").read_bytes())
    data = b"".join(path.read_bytes() for path in site.home.cache.rglob("*") if path.is_file())
    assert len(data) > 10_000
    assert bytes(digest) not in data
    assert os.fsencode(tree) not in data


def test_H05_a_remembered_file_is_read_again_when_the_store_lost_its_content(
    site: Site, tree: Path, tmp_path: Path
) -> None:
    age(site, tree, 10**10)
    commit_tree(site.registry(), tree)
    for name in site.names(".pack"):
        site.backend.delete(name)
    assert read_by(site, tree, step=2) == {"a", "m.safetensors"}
    checkout_to(site.registry(cold=True), "m", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tree)


def test_a_remembered_index_does_not_hide_that_its_shard_is_gone(site: Site, tmp_path: Path) -> None:
    index = b'{"metadata": {}, "weight_map": {"w": "model-1.safetensors", "v": "model-2.safetensors"}}'
    files = {"model.safetensors.index.json": index}
    files |= {f"model-{n}.safetensors": safetensors({name: weights(n, 50)}) for n, name in ((1, "w"), (2, "v"))}
    tree = write_files(tmp_path / "tree", files)
    age(site, tree, 10**10)
    commit_tree(site.registry(), tree)
    (tree / "model-2.safetensors").unlink()
    for cold in (True, False):
        with pytest.raises(BadInput, match="model-2"):
            commit_tree(site.registry(cold=cold), tree)
