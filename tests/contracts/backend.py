"""What `store/backends/contract.py` promises, as a suite: a backend's tests subclass it and give a `backend`."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from cairn.core.errors import BadName, ObjectExists, ObjectNotFound
from cairn.store.backends.contract import Backend, Capabilities

BYTES = bytes(range(256)) * 5
BAD_NAMES = [
    *("/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", ".tmp-a", "a/.b", "A", "a b", "a\n", "a\0", "a\\b"),
    *("ä", "a:b", "a" * 256, "b/" + "a" * 256, "/".join(["a" * 200] * 6)),
]
# Every method that takes an object's name, and every one that takes a folder's.
NAMED: list[Callable[[Backend, str], object]] = [
    lambda backend, name: backend.create(name, [b"x"]),
    lambda backend, name: backend.read(name),
    lambda backend, name: backend.read_into(name, 0, bytearray(1)),
    lambda backend, name: backend.size(name),
    lambda backend, name: backend.delete(name),
    lambda backend, name: backend.settle(name),
]
FOLDERED: list[Callable[[Backend, str], object]] = [
    lambda backend, name: backend.list(name),
    lambda backend, name: backend.folders(name),
    lambda backend, name: backend.reclaim(name),
]
# (offset, length) of a read of BYTES.
RANGES = [(0, 0), (0, 1), (0, 1280), (0, 9999), (700, 3), (1279, 1), (1279, 9), (1280, 1), (5000, 1), (3, 1277)]


def sizes_of(backend: Backend) -> list[tuple[str, int]]:
    """Names and sizes of all objects, as listed."""
    return [(listed.name, listed.size) for listed in backend.list()]


class BackendContract:
    """Subclass this and override `backend`, which must be empty; it may be the same storage for one test only."""

    # Fewer where the storage takes seconds to say who lost.
    races = 20

    @pytest.fixture
    def backend(self) -> Backend:
        raise NotImplementedError

    def names(self, backend: Backend, prefix: str = "") -> list[str]:
        return [listed.name for listed in backend.list(prefix)]

    # --- Creating and reading -----------------------------------------------------------------

    def test_says_what_and_where_it_is(self, backend: Backend) -> None:
        assert isinstance(backend.capabilities, Capabilities)
        assert ":" in backend.url

    def test_what_was_created_is_read(self, backend: Backend) -> None:
        backend.create("objects/a.pack", [BYTES])
        assert backend.read("objects/a.pack") == BYTES
        assert backend.size("objects/a.pack") == len(BYTES)

    @pytest.mark.parametrize("parts", [[], [b""], [b"", b"ab", b"", b"c"], [bytes([i % 256]) for i in range(3000)]])
    def test_parts_are_joined(self, backend: Backend, parts: list[bytes]) -> None:
        backend.create("a", parts)
        assert backend.read("a") == b"".join(parts)
        assert backend.size("a") == len(b"".join(parts))

    def test_any_buffer_is_a_part(self, backend: Backend) -> None:
        backend.create("a", [bytearray(b"ab"), memoryview(b"-cd-")[1:3], memoryview(bytearray(8)).cast("I")])
        assert backend.read("a") == b"abcd" + bytes(8)

    def test_a_large_object_is_stored_whole(self, backend: Backend) -> None:
        data = BYTES * 4096
        backend.create("a", [data, data])
        assert backend.read("a") == data + data

    def test_the_callers_buffer_is_not_kept(self, backend: Backend) -> None:
        buffer = bytearray(b"before")
        backend.create("a", [buffer])
        buffer[:] = b"after!"
        assert backend.read("a") == b"before"

    @pytest.mark.parametrize(("offset", "length"), RANGES)
    def test_ranges(self, backend: Backend, offset: int, length: int) -> None:
        backend.create("a", [BYTES])
        expected = BYTES[offset : offset + length]
        assert backend.read("a", offset, length) == expected
        assert backend.read("a", offset) == BYTES[offset:]
        target = bytearray(b"\xaa" * (length + 2))
        assert backend.read_into("a", offset, memoryview(target)[1 : length + 1]) == len(expected)
        assert target == b"\xaa" + expected + b"\xaa" * (length + 1 - len(expected))

    @pytest.mark.parametrize("name", ["a", "b", "a/b", "c/d/e"])
    def test_what_is_absent_is_not_found(self, backend: Backend, name: str) -> None:
        backend.create("b/c", [b"x"])
        backend.create("c/x", [b"x"])
        for ask in (backend.read, backend.size, backend.settle, lambda name: backend.read_into(name, 0, bytearray(1))):
            with pytest.raises(ObjectNotFound, match=name):
                ask(name)

    def test_an_object_is_no_folder(self, backend: Backend) -> None:
        backend.create("a", [b"x"])
        with pytest.raises(ObjectNotFound):
            backend.read("a/b")
        assert self.names(backend, "a") == []
        assert list(backend.folders("a")) == []
        backend.delete("a/b")
        assert backend.read("a") == b"x"

    def test_settling_changes_nothing(self, backend: Backend) -> None:
        backend.create("a/b", [BYTES])
        backend.settle("a/b")
        assert backend.read("a/b") == BYTES

    # --- Create-only --------------------------------------------------------------------------

    @pytest.mark.parametrize("other", [b"x", b"other, and longer", b""])
    def test_an_object_is_never_replaced(self, backend: Backend, other: bytes) -> None:
        backend.create("a/b", [b"x"])
        with pytest.raises(ObjectExists, match="a/b"):
            backend.create("a/b", [other])
        assert backend.read("a/b") == b"x"
        assert sizes_of(backend) == [("a/b", 1)]

    def test_of_racing_threads_one_wins(self, backend: Backend) -> None:
        for round_number in range(self.races):
            barrier = threading.Barrier(4)
            winners = []

            def race(who: int, name: str = f"log/{round_number}", barrier: threading.Barrier = barrier) -> int | None:
                barrier.wait()
                try:
                    backend.create(name, [bytes([who]) * 1000])
                except ObjectExists:
                    # Guarantee 3 and 4: who lost finds the winner's object whole.
                    assert len(backend.read(name)) == 1000
                    return None
                return who

            with ThreadPoolExecutor(4) as pool:
                winners = [who for who in pool.map(race, range(4)) if who is not None]
            assert len(winners) == 1
            assert backend.read(f"log/{round_number}") == bytes(winners) * 1000

    def test_nobody_sees_half_an_object(self, backend: Backend) -> None:
        stop = threading.Event()
        data = BYTES * 400

        def write() -> None:
            for number in range(30):
                backend.create(f"objects/{number}", [data] * 2)
            stop.set()

        with ThreadPoolExecutor(1) as pool:
            writer = pool.submit(write)
            while not stop.is_set() and not writer.done():
                for listed in backend.list():
                    assert listed.size == 2 * len(data)
                    assert len(backend.read(listed.name)) == 2 * len(data)
            writer.result()
        assert len(self.names(backend)) == 30

    # --- Listing ------------------------------------------------------------------------------

    def test_listing_is_sorted_by_full_name(self, backend: Backend) -> None:
        names = sorted(["b", "a/b", "a.b", "a-b", "a0", "a/b.c", "a/b/c", "a_", "0/1/2/3", "-", "_/x"])
        names.remove("a/b")  # it is a folder already
        for number, name in enumerate(reversed(names)):
            backend.create(name, [b"x" * number])
        sizes = {name: number for number, name in enumerate(reversed(names))}
        assert sizes_of(backend) == [(name, sizes[name]) for name in names]

    def test_listing_a_folder_gives_full_names_below_it(self, backend: Backend) -> None:
        for name in ["a/b/c", "a/b/d/e", "a/bb/x", "a/b.x", "b/c", "c"]:
            backend.create(name, [b"x"])
        assert self.names(backend, "a") == ["a/b.x", "a/b/c", "a/b/d/e", "a/bb/x"]
        assert self.names(backend, "a/b") == ["a/b/c", "a/b/d/e"]
        assert self.names(backend, "absent") == self.names(backend, "a/absent/x") == []

    def test_folders_are_those_right_below(self, backend: Backend) -> None:
        for name in ["a/b/c", "a/d/e/f", "a/x", "b", "c-/x"]:
            backend.create(name, [b"x"])
        assert list(backend.folders()) == ["a", "c-"]
        assert list(backend.folders("a")) == ["b", "d"]
        assert list(backend.folders("a/b")) == list(backend.folders("absent")) == []

    def test_an_empty_store_lists_nothing(self, backend: Backend) -> None:
        assert self.names(backend) == list(backend.folders()) == []
        assert backend.reclaim("") == 0

    def test_a_stamp_tells_versions_apart(self, backend: Backend) -> None:
        def stamps() -> dict[str, bytes]:
            return {listed.name: listed.stamp for listed in backend.list()}

        backend.create("a", [b"one"])
        backend.create("b", [b"one"])
        before = stamps()
        assert stamps() == before
        backend.delete("a")
        backend.create("a", [b"two"])
        after = stamps()
        assert after["b"] == before["b"]
        assert after["a"] != before["a"] or after["a"] == b"", "empty where none can be told"

    # --- Deleting -----------------------------------------------------------------------------

    def test_deletion_is_visible_at_once(self, backend: Backend) -> None:
        backend.create("a/b", [b"x"])
        backend.create("a/c", [b"y"])
        assert backend.read("a/b") == b"x"
        backend.delete("a/b")
        for ask in (backend.read, backend.size, backend.settle):
            with pytest.raises(ObjectNotFound):
                ask("a/b")
        assert self.names(backend) == ["a/c"]

    def test_deleting_what_is_absent_is_no_error(self, backend: Backend) -> None:
        backend.delete("a")
        backend.delete("b/c/d")
        assert self.names(backend) == []

    def test_a_name_is_free_after_deletion(self, backend: Backend) -> None:
        backend.create("a/b", [b"x"])
        backend.delete("a/b")
        backend.create("a/b", [b"new"])
        assert backend.read("a/b") == b"new"

    def test_listing_goes_on_while_objects_are_deleted(self, backend: Backend) -> None:
        for number in range(10):
            backend.create(f"{number % 3}/{number}/x", [b"x"])
        listing = backend.list()
        assert next(listing).name == "0/0/x"
        for number in range(0, 10, 2):
            backend.delete(f"{number % 3}/{number}/x")
        rest = {listed.name for listed in listing}
        assert {"0/3/x", "0/9/x", "1/1/x", "1/7/x", "2/5/x"} <= rest

    def test_reclaiming_leaves_objects_alone(self, backend: Backend) -> None:
        backend.create("a/b", [BYTES])
        assert backend.reclaim("a") == backend.reclaim("") == backend.reclaim("absent") == 0
        assert backend.read("a/b") == BYTES

    # --- Names --------------------------------------------------------------------------------

    @pytest.mark.parametrize("name", ["a" * 255, "b/" + "a" * 255, "0", "-_.x", "a.b-c_d/e..f"])
    def test_good_names(self, backend: Backend, name: str) -> None:
        backend.create(name, [b"x"])
        assert self.names(backend) == [name]
        assert backend.read(name) == b"x"

    @pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
    def test_bad_names(self, backend: Backend, name: str) -> None:
        for call in [*NAMED, *FOLDERED]:
            with pytest.raises(BadName):
                call(backend, name)
        assert self.names(backend) == []

    def test_an_object_has_a_name(self, backend: Backend) -> None:
        for call in NAMED:
            with pytest.raises(BadName):
                call(backend, "")
