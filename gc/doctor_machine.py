"""What a doctor sees on this machine: keys and rights, the user's folders, free space, clock."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from cairn.core.errors import CairnError, UsageError
from cairn.gc.doctor_rights import on_rights
from cairn.gc.remark import ACT, FINE, NOTE, Remark, several, size, span
from cairn.gc.roots import live_checkpoints
from cairn.gc.usage import logical_bytes
from cairn.registry.location import is_remote, local_path
from cairn.registry.opened import OpenStore
from cairn.registry.registry import Registry

# On these, LMDB's memory map and locks do not hold.
_NETWORK = ("9p", "afs", "beegfs", "ceph", "cifs", "fuse", "glusterfs", "gpfs", "lustre", "nfs", "smb")
_TEMPORARY = ".tmp-"
_HOUR_SECONDS = 3600
_NS = 1_000_000_000
# Clocks of machines that keep time differ by less.
_SKEW_SECONDS = 60


def on_this_machine(registry: Registry) -> Iterator[Remark]:
    """Remarks on what lies here, not in the store."""
    opened = registry.opened
    yield from on_rights(registry)
    for folder, what in ((opened.home.state, "state"), (opened.home.cache, "cache")):
        yield _folder(folder, what)
    scrub = opened.home.scrub_file(opened.store)
    if scrub.exists() and scrub.stat().st_size:  # it is empty if nothing has been read yet
        text = "a 'cairn verify' of this machine was interrupted, or is at work; the same command goes on where it was"
        yield Remark("verify", NOTE, text)
    yield from _bad_places(registry)
    yield from _clock(registry)
    root = store_folder(opened)
    if root is not None:
        yield _space(registry, root)
        yield from _temporaries(opened, root)


def store_folder(opened: OpenStore) -> Path | None:
    """The folder of a store that lies in one."""
    url = opened.backend.url
    if is_remote(url):
        return None
    try:
        folder = local_path(url)
    except UsageError:
        return None
    return folder if folder.is_dir() else None


def _folder(folder: Path, what: str) -> Remark:
    there = next((one for one in (folder, *folder.parents) if one.exists()), folder)
    if not os.access(there, os.W_OK):
        text = f"{what} folder {folder} cannot be written to: commands start slower and remember nothing"
        return Remark(what, NOTE, text, f"make it writable, or set XDG_{what.upper()}_HOME to another place")
    kind = file_system(there)
    if what == "cache" and any(kind == one or kind.startswith((f"{one}.", f"{one}4")) for one in _NETWORK):
        text = f"cache folder {folder} lies on a network file system ({kind}), where it may be damaged by two machines"
        return Remark(what, ACT, text, "set XDG_CACHE_HOME to a folder on a local disk")
    return Remark(what, FINE, f"{what} folder {folder} can be used")


def file_system(path: Path) -> str:
    """Type of the file system that holds a path; empty where the system does not tell."""
    best, kind = -1, ""
    try:
        device = path.stat().st_dev
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        resolved = str(path.resolve())
    except OSError:
        return ""
    name = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, mount = before.split(" "), before.split(" ")[4]
        fits = resolved == mount or resolved.startswith(mount.rstrip("/") + "/")
        # The device decides; where several mounts have it, or none, the longest path does.
        score = len(mount) + (1 << 20 if fields[2] == name else 0)
        if fits and score > best:
            best, kind = score, after.split(" ")[0]
    return kind


def _bad_places(registry: Registry) -> Iterator[Remark]:
    marked = registry.cache.bad_places()
    in_force = [one for one in marked if registry.state.in_force(one[1])]
    if in_force:
        text = f"content failed to open here before: {several(len(in_force), 'chunk')}"
        yield Remark("damage", ACT, text, "cairn verify --full --repair")


def _clock(registry: Registry) -> Iterator[Remark]:
    now = registry.opened.clock.wall_ns()
    newest = max((root.state.claimed_at for root in live_checkpoints(registry.state)), default=0)
    ahead = (newest - now) / _NS
    if ahead > _SKEW_SECONDS:
        text = f"a checkpoint claims to be {span(ahead)} in the future: a clock is wrong, here or where it was made"
        yield Remark("clock", ACT, text, "compare 'date' with the time server; order goes by the log, not by clocks")
    else:
        yield Remark("clock", FINE, "no checkpoint claims to be from the future")


def _space(registry: Registry, root: Path) -> Remark:
    free = shutil.disk_usage(root).free
    roots = live_checkpoints(registry.state)
    try:
        last = logical_bytes(registry, roots[-1]) if roots else 0
    except CairnError:
        last = 0  # its damage is another matter
    text = f"{size(free)} are free where the store is; the last checkpoint has {size(last)}"
    if free < last:
        return Remark("space", ACT, text, "'cairn gc apply --yes', 'cairn retain apply', or a larger disk")
    return Remark("space", NOTE if free < 4 * last else FINE, text)


def _temporaries(opened: OpenStore, root: Path) -> Iterator[Remark]:
    now, count, total = opened.clock.wall_ns() / _NS, 0, 0
    for folder, _, names in os.walk(root):
        for name in names:
            if not name.startswith(_TEMPORARY):
                continue
            try:
                found = os.stat(os.path.join(folder, name), follow_symlinks=False)
            except OSError:
                continue
            if now - found.st_mtime > _HOUR_SECONDS:
                count, total = count + 1, total + found.st_size
    if count:
        text = f"{several(count, 'temporary file')} of {size(total)} are left from writers that were killed"
        yield Remark("temporary files", NOTE, text, "the next commit and 'cairn gc apply --yes' remove them")
