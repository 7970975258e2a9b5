"""From captured memory to chunks: on how many threads."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from cairn.core.limits import MEMORY_BUDGET_BYTES
from cairn.core.pool import threads_within_budget
from cairn.store.backends.memory import MemoryBackend
from cairn.store.backends.posix import PosixBackend
from cairn.training.encode import WORKER_BYTES, Encoder, threads_beside_training
from tests.cases.training import Runs

MOST = MEMORY_BUDGET_BYTES // WORKER_BYTES


@pytest.mark.parametrize(("processors", "threads"), [(None, 1), (1, 1), (2, 1), (3, 2), (64, MOST)])
def test_training_keeps_a_processor(monkeypatch: pytest.MonkeyPatch, processors: int | None, threads: int) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    local, remote = MemoryBackend(), MemoryBackend()
    local.url, remote.url = "file:///store", "s3://bucket/store"
    assert threads_beside_training(local) == threads
    assert threads_beside_training(remote) == threads_within_budget(WORKER_BYTES)


def test_a_save_that_is_waited_for_takes_all_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used, run = [], Encoder.run

    def noted(self: Encoder, threads: int) -> Any:
        used.append(threads)
        return run(self, threads)

    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(Encoder, "run", noted)
    with Runs(tmp_path, PosixBackend(tmp_path / "store")).checkpointer() as checkpointer:
        checkpointer.save(1, {"a": torch.ones(300)}, blocking=True)
        checkpointer.save(2, {"a": torch.ones(300)}).committed.result()
    assert used == [3, 1]
