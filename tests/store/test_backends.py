"""The suite for backends that live in memory, then the faults themselves."""

import pytest

from cairn.core.clock import SystemClock
from cairn.core.errors import (
    AnswerLost,
    StorageError,
    StorageFull,
)
from cairn.store.backends.contract import Backend
from cairn.store.backends.faults import (
    Call,
    Corrupt,
    Crash,
    Delay,
    Effect,
    Fail,
    Fault,
    FaultyBackend,
    LoseAnswer,
    LoseRequest,
    Stopped,
)
from cairn.store.backends.memory import MemoryBackend
from tests.contracts.backend import BackendContract


class TestMemory(BackendContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return MemoryBackend()


class TestFaultyWithoutFaults(BackendContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return FaultyBackend(MemoryBackend())


# --- Faults -----------------------------------------------------------------------------------


def faulty(*script: Fault) -> FaultyBackend:
    inner = MemoryBackend()
    inner.create("log/0", [b"\x00\xff"])
    return FaultyBackend(inner, script)


def test_faults_meet_the_calls_that_they_name() -> None:
    backend = faulty(Fail(op="create", name="log/*", call=2, error=StorageFull), Fail(op="size"))
    backend.create("log/1", [b"x"])
    backend.create("other", [b"x"])
    with pytest.raises(StorageFull, match="log/2"):
        backend.create("log/2", [b"x"])
    backend.create("log/2", [b"x"])
    for name in ["log/0", "log/1"]:
        with pytest.raises(StorageError, match=name):
            backend.size(name)
    assert backend.calls[:2] == (Call("create", "log/1"), Call("create", "other"))
    assert len(backend.calls) == 6


def test_a_lost_request_has_no_effect_and_a_lost_answer_has() -> None:
    backend = faulty(LoseRequest(name="request"), LoseAnswer(op="create", call=2), LoseAnswer(op="create", call=3))
    for name in ["request", "answer", "log/0"]:
        with pytest.raises(AnswerLost, match=name):
            backend.create(name, [b"x"])
    assert [listed.name for listed in backend.inner.list()] == ["answer", "log/0"]
    assert backend.read("log/0") == b"\x00\xff"


@pytest.mark.parametrize(("effect", "stored"), [(Effect.NONE, None), (Effect.TORN, b"ab"), (Effect.COMPLETE, b"abcd")])
def test_after_a_crash_nothing_happens(effect: Effect, stored: bytes | None) -> None:
    backend = faulty(Crash(call=2, effect=effect))
    assert backend.size("log/0") == 2
    with pytest.raises(Stopped):
        backend.create("a", [b"abc", b"d"])
    for ask in (backend.delete, backend.read, backend.list):
        with pytest.raises(Stopped):
            ask("log/0")
    assert backend.calls == (Call("size", "log/0"), Call("create", "a"))
    found = {listed.name: backend.inner.read(listed.name) for listed in backend.inner.list()}
    assert found == {"log/0": b"\x00\xff"} | ({} if stored is None else {"a": stored})


def test_corruption_flips_one_bit_of_what_is_read_or_stored() -> None:
    backend = faulty(Corrupt(op="read", bit=1), Corrupt(op="read_into", bit=15), Corrupt(op="create", bit=16))
    assert backend.read("log/0") == b"\x02\xff"
    target = bytearray(3)
    assert backend.read_into("log/0", 0, target) == 2
    assert target == b"\x00\x7f\x00"
    assert backend.inner.read("log/0") == b"\x00\xff"
    backend.create("a", [b"\x00", b"\x00"])
    assert backend.inner.read("a") == b"\x01\x00"


def test_several_faults_meet_one_call() -> None:
    waits: list[float] = []

    class Waiting(SystemClock):
        def sleep(self, seconds: float) -> None:
            waits.append(seconds)

    backend = faulty(Delay(seconds=3.0, clock=Waiting()), LoseAnswer(op="create"), Corrupt(op="create"))
    with pytest.raises(AnswerLost):
        backend.create("a", [b"\x00"])
    assert (waits, backend.inner.read("a")) == ([3.0], b"\x01")
