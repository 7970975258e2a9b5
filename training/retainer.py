"""Retention behind a training run, after each commit."""

from contextlib import closing

from cairn.registry.models import find_model
from cairn.registry.opened import OpenStore
from cairn.registry.registry import Registry
from cairn.registry.retaining import retain
from cairn.registry.retention import Retention
from cairn.training.behind import Behind


def retainer(opened: OpenStore, model: str, branch: str, rules: Retention) -> Behind[None]:
    """Applies rules to a branch; it has a registry of its own."""

    def work(_: None) -> None:
        with closing(Registry(opened)) as registry:
            retain(registry, find_model(registry, model), branch, rules)

    return Behind(f"retention on {model}@{branch}", work)
