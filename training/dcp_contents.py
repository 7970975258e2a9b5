"""A checkpoint as torch's distributed checkpoints see one: entries by flat name, and the metadata that planners read.

Works for whatever wrote the checkpoint. What `Checkpointer` stores as one value and a planner would have taken apart is
taken apart here, by the planner's own rule.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from cairn.core.errors import RefusedError
from cairn.manifests.schema import Key, TensorEntry, ValueEntry
from cairn.manifests.values import Container, decode_value
from cairn.registry.checkpoint import CheckpointManifest
from cairn.store.crypto.components import ComponentClass
from cairn.training.dcp_groups import member_names, spells_as_torch, torch_path
from cairn.training.dcp_names import flat_name, path_of
from cairn.training.leaves import DTYPE_NAMES, Path
from cairn.training.plaindata import unplain

_STATE = (ComponentClass.WEIGHTS, ComponentClass.OPTIMIZER, ComponentClass.TRAINING)
# Larger values are not opened to see whether they are dicts: they are data, and every rank reads the metadata.
_OPENED_BYTES_MAX = 1 << 20
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


class Contents:
    """Tensors and values of a checkpoint by flat name, and the path that each name stands for.

    Tensors of a dtype that this torch does not have are left out.

    Raises:
        RefusedError: two entries have one flat name; names both.
    """

    def __init__(self, manifest: CheckpointManifest, components: Sequence[ComponentClass] = _STATE) -> None:
        self.manifest = manifest
        self.tensors: dict[str, TensorEntry] = {}
        self.values: dict[str, Callable[[], Any]] = {}
        self.paths: dict[str, Path] = {}
        self._keys: dict[str, Key] = {}
        # Whether groups list their parameters by name, in no order that means anything.
        self.by_name = False
        for component in components:
            entries: list[TensorEntry | ValueEntry] = [*manifest.tensors(component), *manifest.values(component)]
            optimizer = component is ComponentClass.OPTIMIZER
            both = optimizer and spells_as_torch(entry.key.path for entry in entries)
            self.by_name |= optimizer and not both
            for entry in entries:
                path = torch_path(entry.key.path) if optimizer else None
                if path is None:
                    self._add(entry, path_of(entry.key))
                elif not both:
                    self._add(entry, path_of(Key(entry.key.scope, path)))

    def metadata(self) -> Metadata:
        """What planners read: each tensor as one chunk."""
        described: dict[str, STORAGE_TYPES] = {name: _described(entry) for name, entry in self.tensors.items()}
        described.update((name, BytesStorageMetadata()) for name in self.values)
        return Metadata(described, planner_data=dict(self.paths))

    def _add(self, entry: TensorEntry | ValueEntry, path: Path) -> None:
        if isinstance(entry, TensorEntry):
            if entry.dtype in DTYPES:
                self.tensors[self._name(entry.key, path)] = entry
            return
        if entry.length > _OPENED_BYTES_MAX:
            self.values[self._name(entry.key, path)] = partial(self._read, entry)
            return
        value = self._read(entry)
        if (members := member_names(value)) is not None:
            value = members
        if isinstance(value, Container):
            return  # its items have entries of their own
        # What no planner has taken apart stands in no scope, and stays whole.
        for below, leaf in _leaves(value) if entry.key.scope else (((), value),):
            self.values[self._name(entry.key, path + below)] = partial(_given, leaf)

    def _read(self, entry: ValueEntry) -> Any:
        manifest = self.manifest
        return unplain(decode_value(manifest.value_bytes(entry), f"value {entry.key} of {manifest.what}"))

    def _name(self, key: Key, path: Path) -> str:
        name = flat_name(path)
        other = self._keys.setdefault(name, key)
        if name in self.paths:
            raise RefusedError(
                f"{other} and {key} of {self.manifest.what} would both be called {name!r} in a state dict",
                hint="load it with cairn.Checkpointer, which tells them apart",
            )
        self.paths[name] = path
        return name


def _given(value: Any) -> Any:
    return value


def _described(entry: TensorEntry) -> TensorStorageMetadata:
    shape = torch.Size(entry.shape)
    chunk = ChunkStorageMetadata(torch.Size([0] * len(shape)), shape)
    return TensorStorageMetadata(TensorProperties(DTYPES[entry.dtype]), shape, [chunk])


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """What DCP's planners make of a value: mappings are walked, and lists that hold one."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, (*path, str(name)))
    elif isinstance(value, list) and _holds_mapping(value):
        for number, item in enumerate(value):
            yield from _leaves(item, (*path, number))
    else:
        yield path, value


def _holds_mapping(value: list[Any]) -> bool:
    return any(isinstance(item, Mapping) or (isinstance(item, list) and _holds_mapping(item)) for item in value)
