"""Progress on standard error: a bar on a terminal, one line per 30 s elsewhere."""

import sys
import threading
import time
from types import TracebackType
from typing import Any

from cairn.cli.output import note, size

_LINE_SECONDS = 30.0
_QUIET_SECONDS = 0.5


class ProgressBar:
    """Draws stages as they come; silent for work that is over at once. Use as a context manager."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._lock = threading.Lock()
        self._bar: Any = None
        self._task: Any = None
        self._stage, self._total, self._done = "", 0, 0
        self._began = self._spoke = time.perf_counter()

    def stage(self, name: str, bytes_total: int | None = None) -> None:
        """A stage begins."""
        with self._lock:
            self._stage, self._total, self._done = name, bytes_total or 0, 0
            self._began = time.perf_counter()
            if self._bar is not None and bytes_total is None:
                self._bar.stop()
                self._bar = None
            elif self._bar is not None:
                self._bar.reset(self._task, description=name, total=bytes_total)

    def advance(self, bytes_done: int) -> None:
        """So many more bytes of the stage are done."""
        with self._lock:
            self._done += bytes_done
            now = time.perf_counter()
            if self._quiet or now - self._began < _QUIET_SECONDS:
                return
            if sys.stderr.isatty():
                self._draw()
            elif now - self._spoke > _LINE_SECONDS:
                self._spoke = now
                self._say(now)

    def _draw(self) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
                TransferSpeedColumn,
            )

            columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True)
            console = Console(stderr=True)
            self._bar = Progress(
                *columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console, transient=True
            )
            self._bar.start()
            self._task = self._bar.add_task(self._stage, total=self._total or None)
        self._bar.update(self._task, completed=self._done)

    def _say(self, now: float) -> None:
        rate = self._done / (now - self._began)
        left = f", {(self._total - self._done) / rate:.0f} s left" if self._total and rate else ""
        of = f" of {size(self._total)}" if self._total else ""
        note(f"{self._stage}: {size(self._done)}{of}, {size(rate)}/s{left}")

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
