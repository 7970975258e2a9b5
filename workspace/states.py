"""Folders of distributed checkpoints within a tree: found by what marks them, taken up as logical state.

Their files are not kept: what they say is how one job was laid out, and a tensor's bytes lie in many of them. All
else in the tree stays files.
"""

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager

import msgspec

from cairn.core.errors import BadInput, RefusedError
from cairn.core.limits import LISTED_NAMES_MAX
from cairn.formats.lfs import refuse_lfs_pointer
from cairn.formats.logical import JoinedState, Path
from cairn.formats.parsed import Source
from cairn.manifests.schema import Key, TensorEntry
from cairn.manifests.values import encode_value
from cairn.store.crypto.components import ComponentClass
from cairn.workspace.ingest import FileIngest
from cairn.workspace.layout import lay_out
from cairn.workspace.source import FileSource
from cairn.workspace.tree import Tree

Open = Callable[[str], AbstractContextManager[Source]]
_Parse = Callable[[set[str], Open], JoinedState]
# What marks a folder of each kind.
_DCP_ENDING = b".distcp"
_ZERO = re.compile(rb"^(?:bf16_|fp16_)?zero_pp_rank_[0-9]+_mp_rank_[0-9]+_optim_states\.pt$")
_UNIVERSAL = re.compile(rb"(?:^|/)zero/[^/]+/fp32\.pt$")
# What Megatron's `torch_dist` writes beside it; both stay files.
_MEGATRON, _MEGATRON_FILES = "Megatron torch_dist", {"common.pt", "metadata.json"}
_HINT = "commit with --opaque to keep all files as plain bytes"


class FoundState(msgspec.Struct, frozen=True):
    """A folder of a tree, relative, that is a distributed checkpoint, and what it holds."""

    folder: bytes
    state: JoinedState
    ingest: FileIngest


class StateEntries(msgspec.Struct, frozen=True):
    """Entries of the states of a tree: tensors and encoded values by component."""

    tensors: dict[ComponentClass, list[TensorEntry]] = {}
    values: dict[ComponentClass, list[tuple[Key, bytes]]] = {}
    warnings: tuple[str, ...] = ()


def find_states(tree: Tree) -> list[FoundState]:
    """Every distributed checkpoint of a tree.

    Raises:
        BadInput: one is damaged, hostile or incomplete.
    """
    if tree.single:
        return []
    folders: dict[bytes, _Parse] = {}
    for node in tree.nodes:
        folder, name = os.path.split(node.path)
        if node.kind == "file" and name.endswith(_DCP_ENDING):
            folders[folder] = _parse_dcp
        elif node.kind == "file" and _ZERO.search(name):
            folders.setdefault(folder, _parse_zero)
        elif node.kind == "file" and _UNIVERSAL.search(node.path):
            folders.setdefault(_UNIVERSAL.sub(b"", node.path), _parse_universal)
    return [_taken_up(tree, folder, parse) for folder, parse in sorted(folders.items())]


def _parse_dcp(names: set[str], open_file: Open) -> JoinedState:
    from cairn.formats.dcp import METADATA_FILE, parse_dcp

    with open_file(METADATA_FILE) as metadata:
        return parse_dcp(metadata, open_file, _MEGATRON if names >= _MEGATRON_FILES else "PyTorch DCP")


def _parse_zero(names: set[str], open_file: Open) -> JoinedState:
    from cairn.formats.zero import parse_zero

    return parse_zero(names, open_file)


def _parse_universal(names: set[str], open_file: Open) -> JoinedState:
    from cairn.formats.zero_universal import parse_universal

    return parse_universal(names, open_file)


def _taken_up(tree: Tree, folder: bytes, parse: "_Parse") -> FoundState:
    from cairn.workspace.joined import JoinedSource, parsed_of  # numpy, which few commits need

    place, shown, within = os.path.join(tree.root, folder), os.fsdecode(folder) or ".", folder + b"/" if folder else b""
    files = (node for node in tree.nodes if node.kind == "file" and node.path.startswith(within))
    names = {os.fsdecode(node.path[len(within) :]): node.stamp for node in files}

    def open_file(name: str) -> AbstractContextManager[Source]:
        if name not in names:
            raise BadInput(
                f"its file {name} is missing: it was not copied, or the save was never finished",
                hint="copy the whole folder again, with every rank's files",
            )
        source = FileSource(os.path.join(place, os.fsencode(name)), name)
        try:
            refuse_lfs_pointer(source)
        except BadInput as error:
            source.close()
            raise BadInput(f"{name}: {error.message}", hint=error.hint) from None
        return source

    try:
        state = parse(set(names), open_file)
    except BadInput as error:
        hint = f"{error.hint}, or {_HINT}" if error.hint else _HINT
        raise BadInput(f"{shown}, a distributed checkpoint: {error.message}", hint=hint) from None
    parsed, source = parsed_of(state), JoinedSource(state, place, shown, names)
    return FoundState(folder, state, FileIngest(source, parsed, lay_out(parsed, source.size)))


def taken_paths(found: list[FoundState]) -> set[bytes]:
    """Paths in the tree of all files that states have taken up."""
    return {os.path.join(one.folder, os.fsencode(name)) for one in found for name in one.state.files}


def checked_apart(entries: list[TensorEntry]) -> list[TensorEntry]:
    """See that no two entries have one key.

    Raises:
        BadInput: two have; names it.
    """
    seen: set[Key] = set()
    for entry in entries:
        if entry.key in seen:
            raise BadInput(f"a file and a distributed checkpoint both hold tensor {entry.key}", hint=_HINT)
        seen.add(entry.key)
    return entries


def entries_of(found: list[FoundState]) -> StateEntries:
    """Entries of states whose tensors have been read."""
    if not found:
        return StateEntries()
    from cairn.training.dcp_names import component_by_name

    tensors: dict[ComponentClass, list[TensorEntry]] = {}
    values: dict[ComponentClass, list[tuple[Key, bytes]]] = {}
    warnings: list[str] = []
    for one in found:
        prefix = os.fsdecode(one.folder) if len(found) > 1 else ""
        record = one.ingest.record()
        for tensor in record.tensors:
            key = _key(prefix, tensor.path)
            tied = None if tensor.tied_to is None else _key(prefix, tensor.tied_to)
            entry = TensorEntry(key, tensor.dtype, tensor.shape, tensor.inline, tensor.tiles, tied_to=tied)
            tensors.setdefault(component_by_name(key, ComponentClass.WEIGHTS), []).append(entry)
        unfit: list[str] = []
        for value in one.state.values:
            key = _key(prefix, value.path)
            try:
                encoded = encode_value(value.value, f"value {key}")
            except RefusedError as error:
                unfit.append(error.message)
                continue
            values.setdefault(component_by_name(key, ComponentClass.TRAINING), []).append((key, encoded))
        where = os.fsdecode(one.folder) or "this folder"
        warnings.append(
            f"{where}: a {one.state.kind} checkpoint of {len(record.tensors)} tensors "
            f"and {len(one.state.values)} values, stored by name; its {len(one.state.files)} files are not kept "
            "(checkout --format dcp writes new ones)"
        )
        warnings += [f"{where}: {line}" for line in (*one.state.warnings, *record.warnings)]
        if unfit:
            listed = "; ".join(unfit[:LISTED_NAMES_MAX])
            warnings.append(f"{where}: {len(unfit)} values were left out: {listed}")
    return StateEntries(tensors, values, tuple(warnings))


def _key(prefix: str, path: Path) -> Key:
    """As a training loop has it: the first segment is the scope; of several states of a tree, the folder is."""
    scope, *below = path
    return Key(prefix, tuple(below) if scope == "" else path) if prefix else Key(str(scope), tuple(below))
