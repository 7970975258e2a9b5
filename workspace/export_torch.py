"""Exports that torch makes the containers of: one archive, or a folder of `torch.distributed.checkpoint`."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cairn.core.errors import RefusedError
from cairn.formats.torch_write import Outline, check_dtypes, check_values, write_dcp, write_torch
from cairn.formats.torch_zip import parse_torch
from cairn.formats.within import Within
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.within import check_stored
from cairn.store.crypto.components import ComponentClass
from cairn.training.dcp_contents import Contents
from cairn.workspace.export import Contained, tied_first
from cairn.workspace.fill import Fill
from cairn.workspace.source import FileSource


def torch_file(manifest: CheckpointManifest, components: Sequence[ComponentClass], path: Path) -> Contained:
    """One archive that `torch.load(weights_only=True)` reads: the state dict, nested as it was.

    Raises:
        RefusedError: torch, or its safe loading, does not take all of it; names what.
    """
    contents, outlines = _outlined(manifest, components)
    values = {name: read() for name, read in contents.values.items()}
    check_values(values)
    if path.exists():
        raise RefusedError(f"the checkpoint has a file {path.name} of its own", hint="use --format files")
    leaves = {_honest(contents.paths[name], contents.by_name): leaf for name, leaf in (values | outlines).items()}
    write_torch(path, _nested(leaves, lists=ComponentClass.FILES not in manifest.components), outlines.values())
    of_path = {contents.paths[name]: entry for name, entry in contents.tensors.items()}
    with FileSource(os.fsencode(path), path.name) as source:
        room = {found.offset: of_path[found.path] for found in parse_torch(source).tensors}
    fills = [Fill(path, offset, entry) for offset, entry in room.items()]
    return Contained([path.name], fills, len(outlines), len(values))


def _honest(path: tuple[str | int, ...], by_name: bool) -> tuple[str | int, ...]:
    """`load_state_dict` of an optimizer goes by the order of `params`; names without an order must not pass for it."""
    if by_name and len(path) > 2 and path[-3] == "param_groups" and path[-1] == "params":
        return (*path[:-1], "param_names")
    return path


def dcp_folder(
    manifest: CheckpointManifest, components: Sequence[ComponentClass], folder: Path, file_bytes: int
) -> Contained:
    """Files that `torch.distributed.checkpoint.load` reads with its default planner.

    Raises:
        RefusedError: torch does not take all of it; names what.
    """
    contents, outlines = _outlined(manifest, components)
    values = {name: read() for name, read in contents.values.items()}
    beside = set(os.listdir(folder))
    rooms = write_dcp(folder, list(outlines.values()), values, contents.paths, file_bytes)
    fills: list[Fill] = []
    sources: dict[str, FileSource] = {}
    try:
        for room in rooms:
            path = folder / room.file
            source = sources.get(room.file)
            if source is None:
                source = sources[room.file] = FileSource(os.fsencode(path), room.file)
            (found,) = parse_torch(Within(source, room.at, room.length)).tensors
            fills.append(Fill(path, room.at + found.offset, contents.tensors[room.name], room.box))
    finally:
        for source in sources.values():
            source.close()
    return Contained(sorted(set(os.listdir(folder)) - beside), fills, len(outlines), len(values))


def _outlined(
    manifest: CheckpointManifest, components: Sequence[ComponentClass]
) -> tuple[Contents, dict[str, Outline]]:
    entries = [entry for component in components for entry in manifest.tensors(component)]
    for entry in entries:
        check_stored(manifest, entry)
    check_dtypes([Outline(str(entry.key), entry.dtype, entry.shape, 0) for entry in entries])
    contents = Contents(manifest, components)
    by_key = {entry.key: entry for entry in entries}
    storages = {key: number for number, key in enumerate(by_key)}
    return contents, {
        name: Outline(name, entry.dtype, entry.shape, storages[tied_first(entry, by_key).key])
        for name, entry in contents.tensors.items()
    }


def _nested(leaves: Mapping[tuple[str | int, ...], Any], lists: bool) -> Any:
    """A tree of dicts.

    Args:
        lists: where keys count from 0 up they are positions.
    """
    if () in leaves:
        return leaves[()]
    below: dict[str | int, dict[tuple[str | int, ...], Any]] = {}
    for path, leaf in leaves.items():
        below.setdefault(path[0], {})[path[1:]] = leaf
    items = {name: _nested(inner, lists) for name, inner in below.items()}
    if lists and items and sorted(items, key=str) == sorted(range(len(items)), key=str):
        return [items[number] for number in range(len(items))]
    return items
