"""The local cache: faster or slower, never wrong, and nothing that befalls it stops anybody."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path

import pytest

from cairn.core.ids import ContentId, SessionId
from cairn.store.cache import Cache, CachedFold
from cairn.store.index import Location, PackRef, PieceEntry, encode_piece
from tests.support.stores import close_environments

BOUND, OTHER = b"b" * 32, b"o" * 32
ID, SECOND = ContentId(b"1" * 32), ContentId(b"2" * 32)
HERE, THERE, ELSEWHERE = Location(0, 8, 100), Location(1, 8, 100), Location(2, 500, 90)


@pytest.fixture(autouse=True)
def environments_closed() -> Iterator[None]:
    yield
    close_environments()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def filled(folder: Path) -> Cache:
    """A cache at position 4 that knows one content and one file."""
    cache = Cache(folder, BOUND)
    assert cache.advance(-1, 4, b"fold", [(ID, HERE)])
    cache.put_files({b"file": b"record"})
    return cache


def is_filled(cache: Cache) -> bool:
    whole = (cache.fold(), cache.locations(ID), cache.get_file(b"file"))
    assert whole in [(CachedFold(4, b"fold"), [HERE], b"record"), (None, [], None)], "neither full nor empty"
    return cache.fold() is not None


def works(cache: Cache) -> bool:
    """Whether it keeps what it is told, at least as long as it is open."""
    fold = cache.fold()
    base = -1 if fold is None else fold.position
    cache.advance(base, base + 1, b"next", [(SECOND, THERE)])
    return cache.locations(SECOND) == [THERE]


# --- What it keeps ----------------------------------------------------------------------------


def test_what_was_put_is_found_by_the_next_to_open_it(folder: Path) -> None:
    filled(folder).close()
    close_environments()
    assert is_filled(Cache(folder, BOUND))


def test_a_cache_of_another_store_is_emptied(folder: Path) -> None:
    filled(folder).close()
    assert not is_filled(Cache(folder, OTHER))
    assert not is_filled(Cache(folder, BOUND))


def test_it_moves_on_only_from_where_it_stands(folder: Path) -> None:
    cache = filled(folder)
    for base, to in ((-1, 9), (3, 9), (5, 9), (9, 10)):
        assert not cache.advance(base, to, b"wrong", [(SECOND, THERE)])
        assert cache.fold() == CachedFold(4, b"fold")
    assert Cache(folder, BOUND).locations(SECOND) == [], "what did not fit stays in memory"
    assert cache.locations(SECOND) == [THERE]
    assert cache.advance(4, 9, b"right", [])
    assert cache.fold() == CachedFold(9, b"right")
    assert not cache.advance(9, 8, b"back", [])
    assert cache.fold() == CachedFold(9, b"right")
    assert cache.advance(9, 9, b"still here", [])


def test_places_are_given_newest_first_without_repeats(folder: Path) -> None:
    cache = filled(folder)
    cache.advance(4, 5, b"fold", [(ID, THERE), (ID, THERE), (ID, HERE)])
    cache.advance(0, 6, b"refused", [(ID, ELSEWHERE)])
    assert cache.locations(ID) == [ELSEWHERE, THERE, HERE]


@pytest.mark.parametrize("firsts", [(5, 900), (900, 5)], ids=["in order", "one before another"])
def test_long_pieces_are_searched_whatever_their_order_and_however_often_they_list_an_id(
    folder: Path, firsts: tuple[int, int]
) -> None:
    cache, packs = filled(folder), [PackRef(SessionId(bytes(16)), bytes(12), 1 << 20)]
    # The second one's entries fill several blocks, and share the first of them with the first one's.
    ids = [ContentId(bytes([n]) * 32) for n in range(3)]
    times = zip(ids, (1, 300, 1), strict=True)
    listed = [PieceEntry(one, 0, 8 + n, 100) for one, count in times for n in range(count)]
    for position, first in enumerate(firsts, 5):
        assert cache.advance(position - 1, position, b"fold", [], {first: encode_piece(packs, listed)})
    for one in ids:
        assert {at.pack for at in cache.locations(one)} == set(firsts)
    assert cache.locations(ID) == [HERE]


def test_places_marked_bad_come_last_and_only_if_asked_for(folder: Path) -> None:
    cache = filled(folder)
    cache.advance(4, 5, b"fold", [(ID, THERE)])
    cache.mark(ID, THERE, bad=True)
    cache.mark(ID, THERE, bad=True)
    assert cache.locations(ID) == [HERE]
    assert cache.locations(ID, marked=True) == [HERE, THERE]
    assert Cache(folder, BOUND).locations(ID) == [HERE], "others see the mark"
    cache.mark(ID, THERE, bad=False)
    cache.mark(SECOND, THERE, bad=False)
    assert cache.locations(ID) == [THERE, HERE]


def test_clear_forgets_everything_but_whose_it_is(folder: Path) -> None:
    cache = filled(folder)
    cache.advance(0, 9, b"refused", [(SECOND, THERE)])
    cache.clear()
    assert not is_filled(cache)
    assert cache.locations(SECOND) == []
    assert works(Cache(folder, BOUND))


def test_without_a_folder_it_lives_as_long_as_it_is_open() -> None:
    with closing(Cache(None, BOUND)) as cache:
        assert cache.advance(-1, 4, b"fold", [(ID, HERE)])
        assert cache.locations(ID) == [HERE]
    assert cache.fold() is None


# --- Several at once --------------------------------------------------------------------------


def _advance_in_process(folder: Path, start: object, pipe: object) -> None:
    cache = Cache(folder, BOUND)
    start.wait()  # type: ignore[attr-defined]  # a barrier of the context
    won = [to for to in range(50) if cache.advance(to - 1, to, b"%d" % to, [(ID, Location(to, 0, 99))])]
    pipe.send(won)  # type: ignore[attr-defined]  # a pipe's end


def test_of_two_processes_one_makes_each_step(folder: Path) -> None:
    context = get_context("fork")
    start, ends = context.Barrier(2), [context.Pipe(duplex=False) for _ in range(2)]
    processes = [context.Process(target=_advance_in_process, args=(folder, start, end)) for _, end in ends]
    for process in processes:
        process.start()
    won = sorted(step for receiver, _ in ends for step in receiver.recv())
    for process in processes:
        process.join()
    cache = Cache(folder, BOUND)
    fold = cache.fold()
    assert fold is not None
    assert won == list(range(fold.position + 1))
    assert [place.pack for place in cache.locations(ID)] == won[::-1]


def test_threads_share_one_environment(folder: Path) -> None:
    caches = [Cache(folder, BOUND) for _ in range(4)]
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for at in range(30):
                key = ContentId(bytes([number, at]) * 16)
                caches[number].mark(key, HERE, bad=True)
                caches[number].put_files({key: b"x"})
                assert caches[0].get_file(key) == b"x"
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


OPEN_AND_WRITE = """
import threading
from pathlib import Path
from cairn.store.cache import Cache
from tests.store.test_cache import BOUND

def work():
    for _ in range(100):
        Cache(Path({folder!r}), BOUND).put_files({{b"key": b"x"}})

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_opening_does_not_stop_threads_that_write(folder: Path) -> None:
    """A process that locks up does so with Python's own lock held, so it is another's, with an alarm set."""
    run(OPEN_AND_WRITE.format(folder=str(folder)), prepare=lambda: signal.setitimer(signal.ITIMER_REAL, 60))


def in_child(work: Callable[[], bool]) -> bool:
    """Whether `work` says yes in a forked child, which ends without any cleaning up."""
    child = os.fork()
    if not child:
        said = False
        try:
            said = work()
        finally:
            os._exit(0 if said else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("kept", [True, False], ids=["folder", "temporary"])
def test_A16_a_forked_child_opens_its_own_environment(folder: Path, kept: bool) -> None:
    with closing(Cache(folder if kept else None, BOUND)) as cache:
        assert cache.advance(-1, 4, b"fold", [(ID, HERE)])

        def child() -> bool:
            inherited = cache._environment
            read = cache.locations(ID) == [HERE]
            wrote = cache.advance(4, 5, b"child", [(SECOND, THERE)]) and cache.locations(SECOND) == [THERE]
            return read and wrote and cache._environment is not inherited

        assert in_child(child)
        assert cache.fold() == CachedFold(5, b"child")
        assert cache.advance(5, 6, b"parent", [])
        assert cache.locations(SECOND) == [THERE]


# --- What befalls it --------------------------------------------------------------------------


def test_a_deleted_folder_is_made_anew(folder: Path) -> None:
    cache = filled(folder)
    shutil.rmtree(folder)
    assert is_filled(cache)
    assert works(cache)
    close_environments()
    fresh = Cache(folder, BOUND)
    assert not is_filled(fresh)
    assert works(fresh)


def test_a_folder_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with closing(Cache(tmp_path / "file" / "cache", BOUND)) as cache:
        assert works(cache)


def test_D13_a_folder_that_cannot_be_written_is_done_without(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o500)
    # Without its capabilities even root obeys permission bits.
    script = f"""
import ctypes
from pathlib import Path
from cairn.store.cache import Cache
from tests.store.test_cache import BOUND, works
assert ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()) == 0
assert works(Cache(Path({str(folder)!r}), BOUND))
"""
    run(script)
    assert list(folder.iterdir()) == []
    folder.chmod(0o700)


GARBAGE = {
    "noise": lambda data: bytes(range(256)) * 64,
    "nothing": lambda data: b"",
    "text": lambda data: b"not a database",
    "no magic": lambda data: bytes(16) + data[16:],
    "first pages gone": lambda data: bytes(8192) + data[8192:],
    "cut within the first pages": lambda data: data[:5000],
    "cut after the first pages": lambda data: data[:8192],
    "one page short": lambda data: data[:-4096],
}


@pytest.mark.parametrize("harm", GARBAGE.values(), ids=GARBAGE)
def test_a_damaged_database_is_done_without(folder: Path, harm: Callable[[bytes], bytes]) -> None:
    cache = filled(folder)
    # Enough that the tables do not fit the pages that hold the roots.
    cache.put_files({b"%032d" % number: bytes(1000) for number in range(200)})
    close_environments()
    data = (folder / "data.mdb").read_bytes()
    (folder / "data.mdb").write_bytes(harm(data))
    # In a process of its own: a page beyond the end of a file is a SIGBUS.
    run(f"""
from pathlib import Path
from cairn.store.cache import Cache
from tests.store.test_cache import BOUND, is_filled, works
cache = Cache(Path({str(folder)!r}), BOUND)
is_filled(cache)
cache.get_file(b"%032d" % 77)
assert works(cache)
cache.put_files({{b"new": b"x"}})
cache.close()
""")


def run(script: str, prepare: Callable[[], None] | None = None) -> None:
    """Run a script in a fresh interpreter that can import the tests."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")])),
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, preexec_fn=prepare, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr}"


@pytest.mark.parametrize("limit", [0, 4096, 20_000, 60_000])
def test_a_full_disk_costs_speed_only(folder: Path, limit: int) -> None:
    def no_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    script = f"""
from pathlib import Path
from cairn.store.cache import Cache
from cairn.core.ids import ContentId
from cairn.store.index import Location
cache = Cache(Path({str(folder)!r}), bytes(32))
stored = []
for step in range(40):
    added = [(ContentId(step.to_bytes(2, "big") * 16), Location(step, at, 99)) for at in range(100)]
    stored.append(cache.advance(step - 1, step, b"fold" * 1000, added))
    cache.put_files({{b"%d" % step: bytes(5000)}})
    cache.mark(ContentId(bytes(32)), Location(0, 0, 99), True)
assert not all(stored), "the disk was not full"
for step in range(40):
    found = cache.locations(ContentId(step.to_bytes(2, "big") * 16), marked=True)
    assert sorted(place.offset for place in found) == list(range(100)), (step, len(found))
cache.close()
"""
    run(script, no_room)
