"""Several processes and threads at one store: all get what they asked for, content is stored about once."""

import os
import threading
from pathlib import Path

import pytest

from cairn.core.errors import RefMoved
from cairn.registry.models import history
from cairn.registry.registry import Registry
from cairn.store.backends.posix import PosixBackend
from tests.support.doubles import SeededEntropy
from tests.support.stores import Site, checkout_to, commit_tree, new_site, tip
from tests.support.trees import snapshot, write_files


@pytest.fixture
def shared(tmp_path: Path) -> Site:
    """A store in a folder."""
    return new_site(tmp_path / "home", PosixBackend(tmp_path / "store"))


def in_children(work: list[object]) -> list[int]:
    """Exit codes of forked children, one a callable."""
    children = []
    for one in work:
        child = os.fork()
        if not child:
            code = 70
            try:
                code = one()  # type: ignore[operator]  # a callable
            finally:
                os._exit(code)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def test_processes_commit_to_models_of_their_own(shared: Site, tmp_path: Path) -> None:
    trees = [
        write_files(tmp_path / f"tree-{n}", {"same": b"shared " * 9000, "own": bytes([n, 7]) * 9000}) for n in range(3)
    ]

    def committer(number: int) -> object:
        def work() -> int:
            shared.entropy = SeededEntropy(100 + number)
            registry = shared.registry(cold=number == 2)
            for step in range(3):
                commit_tree(registry, trees[number], f"m{number}", step=step)
            return 0

        return work

    assert in_children([committer(number) for number in range(3)]) == [0, 0, 0]
    registry = shared.registry(cold=True)
    assert registry.state.voids == []
    for number, tree in enumerate(trees):
        assert [line.meta.step for line in history(registry, *tip(registry, f"m{number}"))] == [2, 1, 0]
        checkout_to(registry, f"m{number}", tmp_path / f"out-{number}")
        assert snapshot(tmp_path / f"out-{number}") == snapshot(tree)


def test_D28_of_writers_to_one_branch_each_wins_or_is_told(shared: Site, tmp_path: Path) -> None:
    tree = write_files(tmp_path / "tree", {"a": b"x" * 500})
    commit_tree(shared.registry(), tree, step=1000)

    def committer(number: int) -> object:
        def work() -> int:
            shared.entropy = SeededEntropy(200 + number)
            registry = shared.registry()
            won = 0
            for step in range(8):
                try:
                    commit_tree(registry, tree, step=number * 10 + step)
                    won += 1
                except RefMoved:
                    pass
            return won

        return work

    won = in_children([committer(number) for number in range(2)])
    assert all(0 <= number <= 8 for number in won), won
    registry = shared.registry(cold=True)
    assert len(history(registry, *tip(registry))) == 1 + sum(won)
    assert sum(won) >= 8
    assert registry.state.voids == []


def test_threads_share_a_registry(shared: Site, tmp_path: Path) -> None:
    registry = shared.registry()
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            tree = write_files(tmp_path / f"tree-{number}", {"a": b"same " * 900, "b": bytes([number, 1]) * 400})
            for step in range(3):
                commit_tree(registry, tree, f"m{number}", step=step)
            checkout_to(registry, f"m{number}", tmp_path / f"out-{number}")
            assert snapshot(tmp_path / f"out-{number}") == snapshot(tree)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


@pytest.mark.parametrize("use", ["reads", "opens anew", "writes"])
def test_A16_a_forked_child_uses_what_it_inherited(shared: Site, tmp_path: Path, use: str) -> None:
    tree = write_files(tmp_path / "tree", {"a": bytes(range(256)) * 99})
    registry = shared.registry()
    commit_tree(registry, tree, step=1)

    def child() -> int:
        shared.entropy = registry.opened.entropy.__class__(300)  # type: ignore[call-arg]  # ours takes a seed
        own: Registry = shared.registry() if use == "opens anew" else registry
        if use == "writes":
            object.__setattr__(own.opened, "entropy", SeededEntropy(301))
            commit_tree(own, tree, step=2)
        checkout_to(own, "m", tmp_path / "child")
        return 0 if snapshot(tmp_path / "child") == snapshot(tree) else 1

    assert in_children([child]) == [0]
    commit_tree(registry, tree, step=3)
    checkout_to(registry, "m", tmp_path / "parent")
    assert snapshot(tmp_path / "parent") == snapshot(tree)
    steps = [line.meta.step for line in history(registry, *tip(registry))]
    assert steps == ([3, 2, 1] if use == "writes" else [3, 1])
