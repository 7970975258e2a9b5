"""Cairn: a content-addressed checkpoint store and registry for large-model training.

    registry = cairn.open_store("path/to/folder")
    result = cairn.commit(registry, Path("run/step-4000"), "llama", cairn.CommitOptions(step=4000))
    cairn.checkout(registry, *cairn.resolve(registry, "llama@step:4000"), Path("out"))

Names are loaded on first use, so that importing the package costs nothing.
"""

# Type checkers take this name for true; importing it from `typing` would cost more than the rest of the package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cairn.core.errors import CairnError
    from cairn.registry.delivery import Selection
    from cairn.registry.registry import Registry
    from cairn.registry.retention import Retention
    from cairn.registry.selectors import resolve
    from cairn.registry.stores import create_store, create_twin, open_remote, open_store
    from cairn.registry.sync import SendOptions, Sent, send
    from cairn.training.checkpointer import Checkpointer
    from cairn.training.dataloader import (
        DistributedCursorSampler,
        GlobalCursor,
        LogicalShards,
        RankLocal,
        StatefulLoader,
    )
    from cairn.training.dcp import CairnReader, CairnSavePlanner, CairnWriter
    from cairn.training.handle import SaveHandle
    from cairn.training.loading import LoadReport
    from cairn.training.provenance import capture_provenance
    from cairn.training.rng import RngState
    from cairn.training.sharded import ShardedSlice, ShardedSlices
    from cairn.workspace.checkout import CheckoutResult, checkout
    from cairn.workspace.clone import CloneResult, clone
    from cairn.workspace.commit import CommitOptions, CommitResult, commit
    from cairn.workspace.export import ExportOptions, ExportResult, export
    from cairn.workspace.opening import LazyTensor, OpenCheckpoint, open

__version__ = "0.1.0"

_HOMES = {
    "CairnError": "core.errors",
    "CairnReader": "training.dcp",
    "CairnSavePlanner": "training.dcp",
    "CairnWriter": "training.dcp",
    "CheckoutResult": "workspace.checkout",
    "Checkpointer": "training.checkpointer",
    "CloneResult": "workspace.clone",
    "CommitOptions": "workspace.commit",
    "CommitResult": "workspace.commit",
    "DistributedCursorSampler": "training.dataloader",
    "ExportOptions": "workspace.export",
    "ExportResult": "workspace.export",
    "GlobalCursor": "training.dataloader",
    "LazyTensor": "workspace.opening",
    "LoadReport": "training.loading",
    "LogicalShards": "training.dataloader",
    "OpenCheckpoint": "workspace.opening",
    "RankLocal": "training.dataloader",
    "Registry": "registry.registry",
    "Retention": "registry.retention",
    "RngState": "training.rng",
    "SaveHandle": "training.handle",
    "Selection": "registry.delivery",
    "SendOptions": "registry.sync",
    "Sent": "registry.sync",
    "ShardedSlice": "training.sharded",
    "ShardedSlices": "training.sharded",
    "StatefulLoader": "training.dataloader",
    "capture_provenance": "training.provenance",
    "checkout": "workspace.checkout",
    "clone": "workspace.clone",
    "commit": "workspace.commit",
    "create_store": "registry.stores",
    "create_twin": "registry.stores",
    "open_remote": "registry.stores",
    "open": "workspace.opening",
    "export": "workspace.export",
    "open_store": "registry.stores",
    "resolve": "registry.selectors",
    "send": "registry.sync",
}

__all__ = [
    "CairnError",
    "CairnReader",
    "CairnSavePlanner",
    "CairnWriter",
    "CheckoutResult",
    "Checkpointer",
    "CloneResult",
    "CommitOptions",
    "CommitResult",
    "DistributedCursorSampler",
    "ExportOptions",
    "ExportResult",
    "GlobalCursor",
    "LazyTensor",
    "LoadReport",
    "LogicalShards",
    "OpenCheckpoint",
    "RankLocal",
    "Registry",
    "Retention",
    "RngState",
    "SaveHandle",
    "Selection",
    "SendOptions",
    "Sent",
    "ShardedSlice",
    "ShardedSlices",
    "StatefulLoader",
    "__version__",
    "capture_provenance",
    "checkout",
    "clone",
    "commit",
    "create_store",
    "create_twin",
    "export",
    "open",
    "open_remote",
    "open_store",
    "resolve",
    "send",
]


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'cairn' has no attribute {name!r}")
    return getattr(import_module(f"cairn.{home}"), name)
