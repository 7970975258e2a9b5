"""Names of tensors across the files of a tree.

A tensor's scope is its file's folder. Where two files of a folder hold different tensors under one key (the RNG
states of several ranks, say), their tensors are scoped by file. Two containers of different kinds that disagree are
two candidates for one model, and a checkpoint must not guess: that is refused.
"""

import os

from cairn.core.errors import BadInput
from cairn.manifests.schema import Key, TensorEntry
from cairn.workspace.record import FileRecord, TensorRecord


def choose_scopes(records: dict[bytes, FileRecord]) -> dict[bytes, str]:
    """Scope of each file's tensors, by path.

    Raises:
        BadInput: two containers of different kinds in one folder disagree about a tensor.
    """
    conflicting: set[bytes] = set()
    first: dict[Key, tuple[bytes, TensorRecord]] = {}
    for path, record in sorted(records.items()):
        for tensor in record.tensors:
            key = Key(_folder_scope(path), tensor.path)
            other_path, other = first.setdefault(key, (path, tensor))
            if other is tensor or other.same_content(tensor):
                continue
            if records[other_path].container != record.container:
                raise BadInput(
                    f"{_show(other_path)} and {_show(path)} disagree about tensor {key}: two candidates for one model",
                    hint="leave one of them out, or commit with --opaque to keep all files as plain bytes",
                )
            conflicting.update((path, other_path))
    return {path: _show(path) if path in conflicting else _folder_scope(path) for path in records}


def told_variants(records: dict[bytes, FileRecord]) -> list[str]:
    """A word on each two files of a folder that hold one model in two dtypes; both are kept."""
    told: dict[tuple[bytes, bytes], str] = {}
    first: dict[Key, tuple[bytes, TensorRecord]] = {}
    for path, record in sorted(records.items()):
        for tensor in record.tensors:
            other_path, other = first.setdefault(Key(_folder_scope(path), tensor.path), (path, tensor))
            if other.shape == tensor.shape and other.dtype != tensor.dtype:
                told.setdefault(
                    (other_path, path),
                    f"{_show(other_path)} and {_show(path)} are variants ({other.dtype}, {tensor.dtype}): "
                    "their tensors are named by file",
                )
    return list(told.values())


def tensor_entries(records: dict[bytes, FileRecord], scopes: dict[bytes, str]) -> list[TensorEntry]:
    """Entries of all tensors; one that several files hold stands once."""
    entries: dict[Key, TensorEntry] = {}
    for path, record in sorted(records.items()):
        for tensor in record.tensors:
            entry = record.tensor_entry(tensor, scopes[path])
            entries.setdefault(entry.key, entry)
    return list(entries.values())


def _folder_scope(path: bytes) -> str:
    return _show(os.path.dirname(path))


def _show(path: bytes) -> str:
    """A path as text; injective, hence the backslash is escaped too."""
    return path.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
