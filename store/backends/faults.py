"""A backend that fails by script, for tests.

* **fault** - a frozen object that says which calls it meets and what it does to them.
* **script** - the faults of one run; each counts the calls that match it, from 1.
* **crash** - from one call on, every call raises `Stopped`, as if the process were gone.

To try every crash point, run once without faults, count `calls`, and run again with `Crash(call=1)`, `Crash(call=2)`
and so on around the same kind of inner backend; then look at the inner backend, which the crash left as it was.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase
from typing import NamedTuple, cast

from cairn.core.buffers import Buffer
from cairn.core.clock import Clock, SystemClock
from cairn.core.errors import AnswerLost, CairnError, StorageError
from cairn.store.backends.contract import Backend, Listed


class Stopped(BaseException):
    """The process is gone. No `except Exception` catches it, as none catches `kill -9`."""


class Call(NamedTuple):
    """One recorded call: the method, and the object or folder that it is about."""

    op: str
    name: str


@dataclass(frozen=True, slots=True)
class Request:
    """A call on its way to the inner backend, with what is to be stored or where the answer goes."""

    call: Call
    go: Callable[["Request"], object]
    parts: Sequence[Buffer] = ()
    target: memoryview | None = None

    def send(self) -> object:
        """Let the call take effect; returns the answer."""
        return self.go(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to the calls that match; this one lets them pass.

    Args:
        op: method name; None matches every method.
        name: shell pattern for the object or folder, of which `*` also matches slashes; None matches every name.
        call: which of the matching calls to meet, from 1; None meets each of them.
        lasting: meet those after it as well.
    """

    op: str | None = None
    name: str | None = None
    call: int | None = None
    lasting: bool = False

    def matches(self, call: Call) -> bool:
        """Whether the call counts for this fault."""
        return self.op in (None, call.op) and (self.name is None or fnmatchcase(call.name, self.name))

    def meets(self, number: int) -> bool:
        """Whether this happens to the matching call of a number."""
        return self.call is None or number == self.call or (self.lasting and number > self.call)

    def apply(self, request: Request) -> object:
        """Do to the request what the fault does; returns the answer."""
        return request.send()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail(Fault):
    """The storage refuses: no effect, and an error that says so."""

    error: type[CairnError] = StorageError

    def apply(self, request: Request) -> object:
        raise self.error(f"cannot {request.call.op} {request.call.name}: a fault was injected; nothing was changed")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseRequest(Fault):
    """No effect, and no answer."""

    def apply(self, request: Request) -> object:
        raise AnswerLost(f"no answer to {request.call.op} {request.call.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseAnswer(Fault):
    """The effect happens; the answer is lost, and so is an error that the inner backend answers with."""

    def apply(self, request: Request) -> object:
        try:
            request.send()
        except CairnError as error:
            raise AnswerLost(f"no answer to {request.call.op} {request.call.name}") from error
        raise AnswerLost(f"no answer to {request.call.op} {request.call.name}")


class Effect(Enum):
    """How much of the call in progress a crash lets happen."""

    NONE = "none"
    # The first half of the object stands under its name: storage that breaks guarantee 1. Other calls: complete.
    TORN = "torn"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash(Fault):
    """The process ends in this call; every later call raises `Stopped` too."""

    effect: Effect = Effect.NONE

    def apply(self, request: Request) -> object:
        if self.effect is Effect.TORN and request.call.op == "create":
            data = b"".join(request.parts)
            request = replace(request, parts=[data[: len(data) // 2]])
        if self.effect is not Effect.NONE:
            # The process does not live to see an error.
            with suppress(CairnError):
                request.send()
        raise Stopped(f"stopped in {request.call.op} {request.call.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrupt(Fault):
    """Flip one bit of what `create` stores, or of what `read` or `read_into` returns.

    Args:
        bit: which one, counted from the first byte's lowest; beyond the end it starts again.
    """

    bit: int = 0

    def apply(self, request: Request) -> object:
        if request.call.op == "create":
            return replace(request, parts=[self._flipped(b"".join(request.parts))]).send()
        answer = request.send()
        if request.target is not None and isinstance(answer, int):
            request.target[:answer] = self._flipped(request.target[:answer])
        return self._flipped(answer) if isinstance(answer, bytes) else answer

    def _flipped(self, data: Buffer) -> bytes:
        flipped = bytearray(data)
        if flipped:
            flipped[self.bit // 8 % len(flipped)] ^= 1 << self.bit % 8
        return bytes(flipped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay(Fault):
    """The call takes longer, by the given clock: a test's own may let another thread go first."""

    seconds: float
    clock: Clock = field(default_factory=SystemClock)

    def apply(self, request: Request) -> object:
        self.clock.sleep(self.seconds)
        return request.send()


class _Run:
    """What one process has called so far, of one backend or of several."""

    def __init__(self, script: Sequence[Fault]) -> None:
        self.script = tuple(script)
        self._matched = [0] * len(self.script)
        self._calls: list[Call] = []
        self._lock = threading.Lock()
        self.stopped = False

    @property
    def calls(self) -> Sequence[Call]:
        with self._lock:
            return tuple(self._calls)

    def faults_for(self, call: Call) -> Sequence[Fault]:
        """Record the call, and count it for each fault that it matches."""
        with self._lock:
            if self.stopped:
                raise Stopped(f"{call.op} {call.name} comes after the crash")
            self._calls.append(call)
            met = []
            for place, fault in enumerate(self.script):
                if fault.matches(call):
                    self._matched[place] += 1
                    if fault.meets(self._matched[place]):
                        met.append(fault)
            return met


class FaultyBackend:
    """Passes calls to `inner` and lets the script meddle; where several faults meet a call, the first is outermost.

    Args:
        script: may be empty; then this is a recorder.
        beside: another one that the same process works with: calls of both are counted together by that one's
            script, and a crash ends both.
    """

    def __init__(self, inner: Backend, script: Sequence[Fault] = (), *, beside: "FaultyBackend | None" = None) -> None:
        self.inner = inner
        self.url = inner.url
        self.capabilities = inner.capabilities
        self._run: _Run = beside._run if beside is not None else _Run(script)

    @property
    def calls(self) -> Sequence[Call]:
        """Calls in the order of their arrival, the one that crashed included, those after it not."""
        return self._run.calls

    def create(self, name: str, parts: Sequence[Buffer]) -> None:
        self._pass("create", name, lambda request: self.inner.create(name, request.parts), parts=parts)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        return cast(bytes, self._pass("read", name, lambda _: self.inner.read(name, offset, length)))

    def read_into(self, name: str, offset: int, target: Buffer) -> int:
        # A view of no bytes cannot be cast, and holds nothing to corrupt.
        view = memoryview(target).cast("B") if memoryview(target).nbytes else None
        return cast(
            int, self._pass("read_into", name, lambda _: self.inner.read_into(name, offset, target), target=view)
        )

    def size(self, name: str) -> int:
        return cast(int, self._pass("size", name, lambda _: self.inner.size(name)))

    def list(self, prefix: str = "") -> Iterator[Listed]:
        # The whole listing is one call, so that it fails as a whole.
        return iter(cast(Sequence[Listed], self._pass("list", prefix, lambda _: tuple(self.inner.list(prefix)))))

    def folders(self, prefix: str = "") -> Sequence[str]:
        return cast(Sequence[str], self._pass("folders", prefix, lambda _: self.inner.folders(prefix)))

    def delete(self, name: str) -> None:
        self._pass("delete", name, lambda _: self.inner.delete(name))

    def settle(self, name: str) -> None:
        self._pass("settle", name, lambda _: self.inner.settle(name))

    def reclaim(self, prefix: str) -> int:
        return cast(int, self._pass("reclaim", prefix, lambda _: self.inner.reclaim(prefix)))

    def _pass(
        self,
        op: str,
        name: str,
        go: Callable[[Request], object],
        parts: Sequence[Buffer] = (),
        target: memoryview | None = None,
    ) -> object:
        call = Call(op, name)
        for fault in reversed(self._run.faults_for(call)):
            go = _through(fault, go)
        try:
            return go(Request(call, go, parts, target))
        except Stopped:
            self._run.stopped = True
            raise


def _through(fault: Fault, go: Callable[[Request], object]) -> Callable[[Request], object]:
    return lambda request: fault.apply(replace(request, go=go))
