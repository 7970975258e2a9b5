"""What a user keeps on this machine: key files, the signing identity, and the newest log head seen.

Data (key files) must be backed up; state (identity, heads) is remembered; the cache may be deleted.
"""

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cairn.core.clock import Entropy
from cairn.core.errors import IntegrityError, NotAllowed, ObjectExists, StorageError
from cairn.core.ids import CheckpointId, StoreId, TenantId
from cairn.store.backends.posix import sync_folder
from cairn.store.crypto.signing import Identity


class Head(msgspec.Struct, frozen=True):
    """A log head seen: number of entries and Merkle root over them."""

    length: int
    root: bytes


@dataclass(frozen=True, slots=True)
class KeyHome:
    """The user's three folders for Cairn."""

    data: Path
    state: Path
    cache: Path

    def key_file(self, store: StoreId) -> Path:
        """Default place of a store's key file."""
        return self.data / "keys" / f"{store.hex()}.key"

    def cache_folder(self, store: StoreId) -> Path:
        """Where the LMDB cache of a store lies."""
        return self.cache / store.hex()

    def transfer_file(self, store: StoreId, checkpoint: CheckpointId) -> Path:
        """Where the journal of a transfer to a store lies."""
        return self.state / "transfers" / f"{store.hex()}-{checkpoint.hex()}"

    def watched_file(self, store: StoreId) -> Path:
        """Where it is noted how long sessions and pins of a store have been silent."""
        return self.state / "watched" / f"{store.hex()}.json"

    def scrub_file(self, store: StoreId) -> Path:
        """Where it is noted what an interrupted scrub of a store has read."""
        return self.state / "scrubs" / f"{store.hex()}.jsonl"

    def remotes_file(self, store: StoreId) -> Path:
        """Where the remotes of a store are noted."""
        return self.data / "remotes" / f"{store.hex()}.json"

    def trust_file(self, tenant: TenantId) -> Path:
        """Where it is noted whose signatures count for a tenant's checkpoints."""
        return self.data / "trust" / f"{tenant.hex()}.json"

    def identity(self, entropy: Entropy) -> Identity:
        """The user's signing identity, created on first use.

        Where the state folder cannot be written (read-only home), reading goes on with one that nobody knows.
        """
        try:
            return kept_identity(self.state / "identity.key", entropy)
        except StorageError:
            return Identity.generate(entropy)

    def remembered_head(self, store: StoreId) -> Head | None:
        """The newest head this user has seen of a store; None if there is none or the file is unreadable."""
        try:
            fields = json.loads((self.state / "heads" / store.hex()).read_text())
            return Head(int(fields["length"]), bytes.fromhex(fields["root"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def remember_head(self, store: StoreId, head: Head) -> None:
        """Remember a newer head; does nothing where the state folder cannot be written."""
        known = self.remembered_head(store)
        if known is not None and known.length >= head.length:
            return
        path = self.state / "heads" / store.hex()
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps({"length": head.length, "root": head.root.hex()}))
            temporary.replace(path)


def write_private(path: Path, data: bytes) -> None:
    """Create a file of mode 0600, durable with its name, never over an existing one.

    Raises:
        ObjectExists: it exists.
        StorageError: it cannot be written.
    """
    with _failures(path):
        _make_folder(path.parent)
        temporary = _written_beside(path, data, 0o600)
        try:
            _name_exclusively(temporary, path, data)
        except FileExistsError:
            raise ObjectExists(f"{path} exists", hint="move it away first: it may be the only key of a store") from None
        finally:
            os.unlink(temporary)
        _sync_names(path.parent)


def replace_file(path: Path, data: bytes) -> None:
    """Put a file in the place of the one of its name, if any; a power cut leaves one of the two, whole.

    Raises:
        StorageError: it cannot be written.
    """
    with _failures(path):
        _make_folder(path.parent)
        os.replace(_written_beside(path, data, 0o666), path)
        _sync_names(path.parent)


def remove_file(path: Path) -> None:
    """Remove a file, if it is there, for good: its name does not come back after a power cut.

    Raises:
        StorageError: it cannot be removed.
    """
    with _failures(path):
        try:
            path.unlink()
        except FileNotFoundError:
            return
        _sync_names(path.parent)


@contextlib.contextmanager
def _failures(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path} cannot be written or removed: {error.strerror}") from None


def _make_folder(folder: Path, mode: int = 0o700) -> None:
    """Make a folder for the user alone, and those above it that are missing, each with a durable name."""
    if folder.is_dir():
        return
    _make_folder(folder.parent, 0o777)
    # Another process may be as far.
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, mode)
    _sync_names(folder.parent)


def _sync_names(folder: Path) -> None:
    # A folder that may be written to and not read cannot be opened; nothing more can be done there.
    with contextlib.suppress(PermissionError):
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sync_folder(opened)
        finally:
            os.close(opened)


def _written_beside(path: Path, data: bytes, mode: int) -> Path:
    """A file with the data, durable but for its name, in the same folder."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write(temporary, os.O_TRUNC, mode, data)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _write(path: Path, flags: int, mode: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, mode)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _name_exclusively(temporary: Path, path: Path, data: bytes) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # no hard links here: written under its own name, and removed if that fails
        try:
            _write(path, os.O_EXCL, 0o600, data)
        except FileExistsError:
            raise
        except OSError:
            path.unlink()
            raise


def kept_identity(path: Path, entropy: Entropy) -> Identity:
    """The identity in a file, made on first use.

    Raises:
        IntegrityError, NotAllowed: see `read_identity`.
        StorageError: the file is not there and cannot be written.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return read_identity(path)
    fresh = Identity.generate(entropy)
    try:
        write_private(path, (fresh.seed().hex() + "\n").encode())
    except ObjectExists:  # another process was first
        return read_identity(path)
    return fresh


def read_identity(path: Path) -> Identity:
    """The identity in a file.

    Raises:
        FileNotFoundError, NotADirectoryError: there is none.
        IntegrityError: it is damaged.
        NotAllowed: it cannot be read.
    """
    try:
        return Identity(bytes.fromhex(_read_text(path)))
    except ValueError:
        raise IntegrityError(
            f"{path} is damaged: it holds no identity",
            hint="restore it from a backup; a new identity (move the file away) has no right to existing stores",
        ) from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise NotAllowed(f"{path} cannot be read: {error.strerror}") from None
