"""A checkpoint becomes files of another format: by logical tensor, whatever layout or container it came from.

Order: what is to be written and whether the format can say it -> containers with room for the tensors -> the tensors,
window by window -> one rename. Files of the checkpoint that hold no tensors (configurations, tokenizers) come along.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from cairn.core.errors import RefusedError, UsageError
from cairn.core.ids import CheckpointId, ModelId
from cairn.core.progress import Progress, Silent
from cairn.formats.detect import INDEX_SUFFIXES
from cairn.formats.safetensors_write import Named, Shard, index_of, plan_shards
from cairn.manifests.dtypes import nbytes
from cairn.manifests.schema import FileEntry, Key, TensorBytes, TensorEntry
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.pins import pinned
from cairn.registry.registry import Registry
from cairn.registry.within import check_stored
from cairn.store.crypto.components import ComponentClass
from cairn.workspace.casefold import check_names_fit
from cairn.workspace.checkout import write_files
from cairn.workspace.destination import becoming, checked_destination
from cairn.workspace.fill import Fill, fill_files
from cairn.workspace.links import is_plain_path

FORMATS = ("safetensors", "torch", "dcp")
STATE = (ComponentClass.WEIGHTS, ComponentClass.OPTIMIZER, ComponentClass.TRAINING)
# What transformers cuts by; one object of a store that takes 5 GiB in one request.
SHARD_BYTES = 5_000_000_000
TORCH_FILE = "model.pt"
_REPLACED = (*INDEX_SUFFIXES, ".safetensors")


class ExportOptions(msgspec.Struct, frozen=True):
    """What to write.

    Args:
        format: one of `FORMATS`.
        components: parts of the checkpoint: `weights`, `optimizer`, `training`; none: the weights for safetensors, else
            all of them.
        shard_bytes: about the largest file, of safetensors and dcp.
    """

    format: str
    components: tuple[str, ...] = ()
    shard_bytes: int = SHARD_BYTES


class ExportResult(msgspec.Struct, frozen=True):
    """What was written. `files` counts those that came along."""

    files: int
    tensors: int
    values: int
    bytes_logical: int
    bytes_fetched: int
    requests: int


class Contained(msgspec.Struct):
    """The files made for the tensors, and what goes where in them."""

    files: list[str]
    fills: list[Fill]
    tensors: int
    values: int = 0


def export(
    registry: Registry,
    model: ModelId,
    checkpoint: CheckpointId,
    destination: Path,
    options: ExportOptions,
    progress: Progress | None = None,
) -> ExportResult:
    """Write a checkpoint's state to `destination`, which must not exist or be an empty folder.

    Raises:
        DestinationExists: something is there.
        RefusedError: the format cannot say all of it; names what. The destination is untouched.
        IntegrityError: the checkpoint is damaged; the destination is untouched.
    """
    progress = progress or Silent()
    if options.format not in FORMATS:
        raise UsageError(f"{options.format!r} is no format", hint=f"choose one of files, {', '.join(FORMATS)}")
    if options.shard_bytes <= 0:
        raise UsageError("a file cannot have a limit of 0 bytes")
    destination = checked_destination(destination)
    token = registry.opened.entropy.token(6).hex()
    with pinned(registry, model, checkpoint), becoming(destination, token) as partial:
        manifest = CheckpointManifest(registry, model, checkpoint, readable_only=True)
        components = _components(manifest, options)
        beside = list(_files_beside(manifest))
        along = write_files(manifest, beside, partial)
        if options.format == "safetensors":
            made = _safetensors(manifest, components, options.shard_bytes, partial, beside)
        else:
            from cairn.workspace.export_torch import dcp_folder, torch_file

            if options.format == "torch":
                made = torch_file(manifest, components, partial / TORCH_FILE)
            else:
                made = dcp_folder(manifest, components, partial, options.shard_bytes)
        size = sum(nbytes(one.entry.dtype, one.box.lengths if one.box else one.entry.shape) for one in made.fills)
        progress.stage("write", size)
        fetched, requests = fill_files(manifest, made.fills, progress)
    return ExportResult(
        files=len(made.files) + along.files,
        tensors=made.tensors,
        values=made.values,
        bytes_logical=size + along.bytes_logical,
        bytes_fetched=fetched + along.bytes_fetched,
        requests=requests + along.requests,
    )


def _components(manifest: CheckpointManifest, options: ExportOptions) -> Sequence[ComponentClass]:
    named = {one.name.lower(): one for one in STATE}
    unknown = [name for name in options.components if name not in named]
    if unknown:
        raise UsageError(f"{unknown[0]!r} is no component of state", hint=f"choose among {', '.join(named)}")
    present = [one for one in STATE if one in manifest.components]
    default = STATE if options.format != "safetensors" else STATE[:1]
    wanted = [named[name] for name in options.components] or default
    for component in wanted:
        if component in manifest.hidden:
            manifest.refuse(component)
    missing = [one for one in wanted if one not in present]
    if (options.components and missing) or len(missing) == len(wanted):
        names = ", ".join(one.name.lower() for one in missing)
        have = ", ".join(one.name.lower() for one in present) or "no state"
        raise RefusedError(f"{manifest.what} has no {names}; it has {have}", hint="choose with --component")
    return [one for one in present if one in wanted]


def _files_beside(manifest: CheckpointManifest) -> Iterable[FileEntry]:
    """Files that hold no tensors; of what is read by name, indices and empty containers tell of what is not written."""
    if ComponentClass.FILES not in manifest.components:
        return []
    files = [entry for entry in manifest.files() if entry.kind == "file"]
    left = {entry.path for entry in files if any(isinstance(segment, TensorBytes) for segment in entry.segments)}
    left |= {entry.path for entry in files if os.fsdecode(entry.path).lower().endswith(_REPLACED)}
    return [entry for entry in files if entry.path not in left]


def tied_first(entry: TensorEntry, entries: Mapping[Key, TensorEntry]) -> TensorEntry:
    """The tensor that an entry shares memory with, where it is among `entries` and has the very same content."""
    first = entries.get(entry.tied_to) if entry.tied_to is not None else None
    return first if first is not None and _content(first) == _content(entry) else entry


def _content(entry: TensorEntry) -> tuple[object, ...]:
    stored = entry.inline, entry.tiles, entry.tile_pages, entry.regions, entry.region_pages
    return entry.dtype, entry.shape, *stored


# --- safetensors ----------------------------------------------------------------------------------


def _safetensors(
    manifest: CheckpointManifest,
    components: Sequence[ComponentClass],
    shard_bytes: int,
    root: Path,
    beside: Sequence[FileEntry],
) -> Contained:
    """One set of files for each component and scope: of one component, the folders that the tensors were found in."""
    planned: list[tuple[str, Shard, dict[str, TensorEntry]]] = []
    contents: list[tuple[str, bytes]] = []
    for component in components:
        stem = "model" if component is ComponentClass.WEIGHTS else component.name.lower()
        for folder, entries in _by_folder(manifest, component).items():
            by_key = {entry.key: entry for entry in entries.values()}
            for entry in entries.values():
                check_stored(manifest, entry)
            named = [_named(name, tied_first(entry, by_key), entry) for name, entry in entries.items()]
            shards = plan_shards(named, stem, shard_bytes)
            planned += [(folder, shard, entries) for shard in shards]
            if len(shards) > 1:
                contents.append((f"{folder}{stem}{INDEX_SUFFIXES[0]}", index_of(shards)))
    contents += [(folder + shard.name, shard.head) for folder, shard, _ in planned]
    names = [name for name, _ in contents]
    check_names_fit(os.fsencode(root), [*map(os.fsencode, names), *(entry.path for entry in beside)])
    for name, content in contents:
        _create(root / name, content)
    fills = []
    for folder, shard, entries in planned:
        path = root / (folder + shard.name)
        os.truncate(path, shard.size)
        fills += [Fill(path, offset, entries[name]) for name, offset in shard.offsets.items()]
    return Contained(names, fills, len(fills))


def _by_folder(manifest: CheckpointManifest, component: ComponentClass) -> dict[str, dict[str, TensorEntry]]:
    """Tensors by name, by the folder that they go to.

    A file's scope is its folder; a training state's is a top-level key, and where there is but one, it needs no folder.

    Raises:
        RefusedError: two tensors of a folder have one name, or a scope cannot be a folder.
    """
    found: dict[str, dict[str, TensorEntry]] = {}
    for entry in manifest.tensors(component):
        name = _flat(entry.key)
        other = found.setdefault(entry.key.scope if entry.key.path else "", {}).setdefault(name, entry)
        if other is not entry:
            raise RefusedError(
                f"{other.key} and {entry.key} would both be called {name!r}",
                hint="choose --format dcp or torch, which keep paths apart",
            )
    if len(found) == 1 and ComponentClass.FILES not in manifest.components:
        return dict(zip([""], found.values(), strict=True))
    unfit = [scope for scope in found if scope and not is_plain_path(os.fsencode(scope))]
    if unfit:
        raise RefusedError(f"{unfit[0]!a} cannot be the name of a folder", hint="choose --format dcp or torch")
    return {f"{scope}/" if scope else "": tensors for scope, tensors in found.items()}


def _named(name: str, first: TensorEntry, entry: TensorEntry) -> Named:
    return Named(name, entry.dtype, entry.shape, _flat(first.key) if first is not entry else "")


def _flat(key: Key) -> str:
    """What stands at the top of a state is called as its scope is."""
    return ".".join(map(str, key.path)) or key.scope


def _create(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(path, "xb") as file:
            file.write(content)
    except FileExistsError:
        raise RefusedError(
            f"the checkpoint has a file {path.name} of its own that is no container of tensors",
            hint="check it out as it is, with --format files",
        ) from None
