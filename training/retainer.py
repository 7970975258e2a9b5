"""Retention behind a training run: after each commit, on a thread of its own, on the coordinator alone.

It has a registry of its own, so that no save ever waits for it: not for a lock, not for a slow answer.
"""

import logging
import threading
from contextlib import closing

from cairn.registry.models import find_model
from cairn.registry.opened import OpenStore
from cairn.registry.registry import Registry
from cairn.registry.retaining import retain
from cairn.registry.retention import Retention
from cairn.training.encode import yield_to_training

log = logging.getLogger("cairn.training")


class Retainer:
    """Applies rules to a branch, once after any number of commits. What fails is told, and tried after the next."""

    def __init__(self, opened: OpenStore, model: str, branch: str, rules: Retention | None) -> None:
        """Nothing happens yet; without rules, nothing ever does."""
        self._opened, self._model, self._branch, self._rules = opened, model, branch, rules
        self._lock = threading.Lock()
        self._wanted = self._running = False
        self._thread: threading.Thread | None = None
        self._failures: list[str] = []

    def begin(self) -> None:
        """Apply the rules soon; returns at once."""
        if self._rules is None:
            return
        with self._lock:
            self._wanted = True
            if not self._running:
                self._running = True
                self._thread = threading.Thread(target=self._run, args=(self._rules,), name="cairn-retain", daemon=True)
                self._thread.start()

    def told(self) -> list[str]:
        """What went wrong since the last call; each is logged as a warning."""
        with self._lock:
            failures, self._failures = self._failures, []
        for text in failures:
            log.warning("%s", text)
        return failures

    def finish(self, seconds: float) -> None:
        """Wait for the work under way."""
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                self._fail(f"not done after {seconds:.0f} s; the next run's first save goes on with it")

    def _run(self, rules: Retention) -> None:
        yield_to_training()
        while True:
            with self._lock:
                if not self._wanted:
                    self._running = False
                    return
                self._wanted = False
            try:
                with closing(Registry(self._opened)) as registry:
                    retain(registry, find_model(registry, self._model), self._branch, rules)
            except BaseException as error:
                self._fail(getattr(error, "message", None) or f"{type(error).__qualname__}: {error}")

    def _fail(self, text: str) -> None:
        with self._lock:
            self._failures.append(f"retention on {self._model}@{self._branch}: {text}")
