"""Operations that go on only when a test lets them: each backend call waits for its turn.

* **lane** - one operation in a thread of its own, as another process would do it; what it asks of the storage waits.
* **verdict** - what happens to the call that waits: it goes, its answer or request is lost, or the process ends there.

Between two turns no thread of any lane runs, so that one seed makes one interleaving.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any

from cairn.core.buffers import Buffer
from cairn.core.errors import AnswerLost
from cairn.store.backends.contract import Backend
from cairn.store.backends.faults import Call, FaultyBackend, Request, Stopped

# A lane that neither asks nor ends for so long waits for something that no turn will bring.
_STUCK_SECONDS = 60.0
# Another thread of an operation may come to ask while one already waits.
_COMPANY_SECONDS = 0.02


class Verdict(Enum):
    """What happens to a call."""

    GO = "go"
    LOSE_ANSWER = "lose answer"
    LOSE_REQUEST = "lose request"
    STOP = "stop"


class Lane:
    """One operation.

    Attributes:
        waiting: calls that wait for a turn, in the order of their coming.
        done: whether it has ended; then `error` is what it raised.
        turns: calls that had their verdict.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: deque[Call] = deque()
        self.done, self.stopped = False, False
        self.turns = 0
        self.error: BaseException | None = None
        self._replies: deque[SimpleQueue[Verdict]] = deque()
        self._arrivals: SimpleQueue[tuple[Call, SimpleQueue[Verdict]] | None] = SimpleQueue()
        self._free: int | None = None

    def start(self, work: Callable[[], object]) -> None:
        """Run until the first call."""

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.error = error
            self._arrivals.put(None)

        threading.Thread(target=run, name=self.name, daemon=True).start()
        self._wait()

    def turn(self, verdict: Verdict = Verdict.GO) -> None:
        """Let the first call that waits have its verdict, and run until the next."""
        self.waiting.popleft()
        self.turns += 1
        self.stopped = self.stopped or verdict is Verdict.STOP
        self._replies.popleft().put(verdict)
        self._wait()

    def finish(self) -> None:
        """Let it go on to its end."""
        while not self.done:
            self.turn()

    def stop(self) -> None:
        """The process is gone."""
        while not self.done:
            self.turn(Verdict.STOP)

    def until(self, op: str, name: str) -> bool:
        """Run until a call waits whose method is `op` and whose name ends with `name`; False if it ends before."""
        while not self.done and not (self.waiting[0].op == op and self.waiting[0].name.endswith(name)):
            self.turn()
        return not self.done

    def ask(self, call: Call) -> Verdict:
        """Wait for a verdict; called by the operation's threads."""
        if self.stopped:
            return Verdict.STOP
        if self._free == threading.get_ident():
            return Verdict.GO
        reply: SimpleQueue[Verdict] = SimpleQueue()
        self._arrivals.put((call, reply))
        return reply.get()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The calling thread acts for the operation without turns, beside the call that waits."""
        self._free = threading.get_ident()
        try:
            yield
        finally:
            self._free = None

    def _wait(self) -> None:
        while not self.done:
            try:
                arrived = self._arrivals.get(timeout=_COMPANY_SECONDS if self.waiting else _STUCK_SECONDS)
            except Empty:
                assert self.waiting, f"{self.name} is stuck"
                return
            if arrived is None:
                self.done = True
                return
            self.waiting.append(arrived[0])
            self._replies.append(arrived[1])
            if len(self.waiting) == 1:
                return


class LaneBackend(FaultyBackend):
    """A backend as one lane reaches it."""

    def __init__(self, inner: Backend, lane: Lane) -> None:
        super().__init__(inner)
        self._lane = lane

    def _pass(
        self,
        op: str,
        name: str,
        go: Callable[[Request], object],
        parts: Sequence[Buffer] = (),
        target: memoryview | None = None,
    ) -> object:
        verdict = self._lane.ask(Call(op, name))
        if verdict is Verdict.STOP:
            raise Stopped(f"stopped in {op} {name}")
        if verdict is Verdict.LOSE_REQUEST:
            raise AnswerLost(f"no answer to {op} {name}")
        answer = super()._pass(op, name, go, parts, target)
        if verdict is Verdict.LOSE_ANSWER:
            raise AnswerLost(f"no answer to {op} {name}")
        return answer


class Inline:
    """In the place of `core.pool.Pool`: the calling thread does all jobs."""

    def __init__(self, threads: int, work: Callable[[Iterable[Any]], None]) -> None:
        self._work = work

    def __class_getitem__(cls, _: object) -> "type[Inline]":
        return cls

    def run(self, jobs: Iterable[Any]) -> None:
        """Work through the jobs."""
        self._work(iter(jobs))
