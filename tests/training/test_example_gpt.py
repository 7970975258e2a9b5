"""The example trains alike in every layout, and alike twice."""

import json
import multiprocessing
import os
import socket
from collections.abc import Iterator
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SPLIT = [("ddp", 2), ("fsdp", 2), ("tp-fsdp", 4), ("pp", 2)]
STEPS = 4
EXIT_SECONDS_MAX = 60

# What a rank does; the names that it lacks are given to it.
RANK = """
import os, runpy, sys
os.environ.update(environment)
sys.argv = command
sys.path.insert(0, os.path.dirname(command[0]))
runpy.run_path(command[0], run_name="__main__")
"""


@cache
def server() -> ForkServerContext:
    """Starts ranks from one process that has imported torch; importing it takes a rank five seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel"])
    return context


def losses(folder: Path, layout: str, ranks: int, *options: str) -> list[float]:
    """Train for a few steps and return the loss of each."""
    file = folder / f"losses-{len(list(folder.iterdir()))}"
    command = [str(EXAMPLES / "train_gpt.py"), "--layout", layout, "--losses", str(file), *options]
    processes = [server().Process(target=exec, args=(RANK, names)) for names in rank_names(command, ranks)]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(EXIT_SECONDS_MAX)
        assert [process.exitcode for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(lines[0]["step"], lines[0]["step"] + len(lines)))
    return [line["loss"] for line in lines]


def in_store(store: Path) -> list[str]:
    """Options that keep checkpoints in a store, every second step."""
    return ["--store", str(store), "--save-every", "2"]


def rank_names(command: list[str], ranks: int) -> Iterator[dict[str, Any]]:
    """What each rank is told; a process alone is told nothing."""
    folders = {name: value for name, value in os.environ.items() if name.startswith("XDG_")}
    if "alone" in command:
        yield {"command": command, "environment": folders}
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1]), "WORLD_SIZE": str(ranks)}
    for rank in range(ranks):
        yield {"command": command, "environment": folders | place | {"RANK": str(rank)}}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Losses of one process without dropout."""
    return losses(tmp_path_factory.mktemp("alone"), "alone", 1, "--steps", str(STEPS), "--dropout", "0")


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "ranks"), SPLIT)
def test_layouts_agree_without_dropout(tmp_path: Path, reference: list[float], layout: str, ranks: int) -> None:
    found = losses(tmp_path, layout, ranks, "--steps", str(STEPS), "--dropout", "0")
    assert found == pytest.approx(reference, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "ranks"), [("alone", 1), *SPLIT])
def test_equal_runs_have_equal_losses(tmp_path: Path, reference: list[float], layout: str, ranks: int) -> None:
    first, second = (losses(tmp_path, layout, ranks, "--steps", str(STEPS)) for _ in range(2))
    assert len(first) == STEPS
    assert first == second
    assert first != reference, "dropout changes nothing"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "ranks", "capture"),
    [("alone", 1, "eager"), *((*split, "eager") for split in SPLIT), ("alone", 1, "overlap"), ("fsdp", 2, "overlap")],
)
def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(
    tmp_path: Path, store: Path, layout: str, ranks: int, capture: str
) -> None:
    folder = tmp_path / "losses"
    folder.mkdir()
    unbroken = losses(folder, layout, ranks, "--steps", "6")
    kept = [*in_store(store), "--capture", capture]
    assert losses(folder, layout, ranks, "--steps", "4", *kept) == unbroken[:4]
    assert losses(folder, layout, ranks, "--steps", "6", *kept) == unbroken[4:]


@pytest.mark.slow
def test_a_run_goes_on_in_other_layouts_on_the_same_data(tmp_path: Path, store: Path) -> None:
    folder = tmp_path / "losses"
    folder.mkdir()
    plain = ["--dropout", "0", "--global-batch", "12"]
    unbroken = losses(folder, "alone", 1, "--steps", "8", *plain)
    found: list[float] = []
    for steps, (layout, ranks) in zip((2, 4, 6, 8), [("tp-fsdp", 4), ("ddp", 3), ("pp", 2), ("alone", 1)], strict=True):
        found += losses(folder, layout, ranks, "--steps", str(steps), *plain, *in_store(store))
    assert found == pytest.approx(unbroken, abs=1e-4)


@pytest.mark.slow
def test_it_learns(tmp_path: Path) -> None:
    found = losses(tmp_path, "alone", 1, "--steps", "30")
    assert found[-1] < found[0] - 2


def test_stages_hold_every_parameter_once_under_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    from gpt.model import Gpt, Shape

    shape = Shape(vocabulary=8, context=4, dim=16, layers=5)
    stages = [Gpt(shape) for _ in range(3)]
    for index, stage in enumerate(stages):
        stage.keep_stage(index, len(stages))
    names = [name for stage in stages for name, _ in stage.named_parameters()]
    assert sorted(names) == sorted(name for name, _ in Gpt(shape).named_parameters())


def test_text_depends_on_its_seed_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    from gpt.text import VOCABULARY, make_text

    text = make_text(20, seed=3)
    assert text == make_text(20, seed=3) != make_text(20, seed=4)
    assert max(map(ord, text)) < VOCABULARY
