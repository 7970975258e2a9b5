"""The suite, and what is S3's own, on a real server: SeaweedFS, or the one that `make test-s3` names."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from cairn.core.clock import SystemClock, SystemEntropy
from cairn.core.errors import NotAllowed, ObjectExists, StorageError
from cairn.store.backends.connections import Place
from cairn.store.backends.contract import Backend
from cairn.store.backends.probe import probe
from cairn.store.backends.s3 import S3Backend
from cairn.store.backends.s3_signing import Credentials, Signer
from tests.contracts.backend import BackendContract, sizes_of
from tests.support.s3 import BUCKET, REGION, Server, fresh_prefix, s3_server

__all__ = ["s3_server"]
pytestmark = pytest.mark.s3


class TestS3(BackendContract):
    races = 5

    @pytest.fixture
    def backend(self, s3_server: Server) -> Backend:
        return s3_server.backend(fresh_prefix())


@pytest.fixture
def s3(s3_server: Server) -> S3Backend:
    return s3_server.backend(fresh_prefix())


def test_a_server_keeps_what_a_store_needs(s3: S3Backend) -> None:
    assert probe(s3, SystemEntropy()) == s3.capabilities
    assert list(s3.list()) == []


def test_a_whole_bucket_may_be_one_store(s3_server: Server) -> None:
    bucket = "cairn-" + SystemEntropy().token(6).hex()
    whole = s3_server.backend(bucket=bucket)
    with pytest.raises(StorageError, match=f"no bucket {bucket}"):
        list(whole.list())
    with pytest.raises(StorageError, match=f"no bucket {bucket}"):
        whole.create("a", [b"x"])
    whole.make_bucket()
    whole.make_bucket()
    whole.create("a/b", [b"x"])
    assert (whole.url, sizes_of(whole), list(whole.folders())) == (f"s3://{bucket}", [("a/b", 1)], ["a"])
    assert s3_server.backend("a", bucket).read("b") == b"x"


def test_a_listing_goes_on_over_pages(s3: S3Backend) -> None:
    names = [f"{number % 7}/{number:04}" for number in range(2100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: s3.create(name, [b"x"]), names))
    assert [listed.name for listed in s3.list()] == sorted(names)
    assert [listed.name for listed in s3.list("3")] == sorted(name for name in names if name.startswith("3/"))
    assert list(s3.folders()) == list("0123456")


def test_a_pack_goes_whole_and_comes_in_ranges_from_many_threads(s3: S3Backend) -> None:
    data = SystemEntropy().token(64 << 20)
    s3.create("pack", [memoryview(data)[: 40 << 20], memoryview(data)[40 << 20 :]])
    target = bytearray(len(data))

    def fetch(offset: int) -> int:
        return s3.read_into("pack", offset, memoryview(target)[offset : offset + (5 << 20)])

    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(fetch, range(0, len(data), 5 << 20)))
    assert (sum(counts), target) == (len(data), data)


def race(s3: S3Backend, go: Callable[[int], bytes], racers: int = 4) -> list[int]:
    """Let forked processes create one object at the same moment; returns who says to have won."""
    ready, children = os.pipe(), []
    for who in range(racers):
        child = os.fork()
        if not child:
            os.close(ready[1])
            # End of file is the starting shot.
            os.read(ready[0], 1)
            code = 2
            try:
                s3.create("log/1", [go(who)])
                code = 0
            except ObjectExists:
                code = 1
            finally:
                os._exit(code)
        children.append(child)
    os.close(ready[0])
    os.close(ready[1])
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert set(codes) <= {0, 1}, codes
    return [who for who, code in enumerate(codes) if code == 0]


@pytest.mark.parametrize("equal", [False, True])
def test_of_racing_processes_one_wins_even_with_equal_bytes(s3: S3Backend, equal: bool) -> None:
    for _ in range(5):
        # The parent's connection is in use before the fork and after it.
        s3.create("log/0", [b"x"])
        winners = race(s3, lambda who: bytes([0 if equal else who]) * 1000)
        assert len(winners) == 1
        assert s3.read("log/1") == bytes([0 if equal else winners[0]]) * 1000
        for name in ("log/0", "log/1"):
            s3.delete(name)


def test_connections_are_shared_and_not_left_open(s3: S3Backend) -> None:
    s3.create("a", [b"x"])
    barrier = threading.Barrier(8)

    def read(_: int) -> bytes:
        barrier.wait()
        return s3.read("a")

    before = len(os.listdir("/proc/self/fd"))
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            assert set(pool.map(read, range(8))) == {b"x"}
    assert len(os.listdir("/proc/self/fd")) - before <= 8


def client(s3_server: Server, access_key: str = "", secret_key: str = "", bucket: str = BUCKET) -> S3Backend:
    held = Credentials(access_key or s3_server.access_key, secret_key or s3_server.secret_key)
    signer = Signer(lambda: held, REGION, SystemClock())
    return S3Backend(bucket, "x", Place(False, "127.0.0.1", s3_server.port), signer)


@pytest.mark.parametrize("wrong", [{"access_key": "AKIANOBODY"}, {"secret_key": "wRoNgSeCrEt"}])
def test_unknown_credentials_are_named_as_such_and_not_shown(s3_server: Server, wrong: dict[str, str]) -> None:
    for ask in (
        lambda b: b.read("a"),
        lambda b: b.create("a", [b"x"]),
        lambda b: list(b.list()),
        lambda b: b.size("a"),
    ):
        with pytest.raises(NotAllowed, match="AWS_ACCESS_KEY_ID") as caught:
            ask(client(s3_server, **wrong))
        assert not [value for value in wrong.values() if value in str(caught.value)]
