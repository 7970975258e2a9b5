"""Root keys of a store: where they are kept, and what they open.

The wrap of the store's keys under the root key of generation g, and its root record in a store with a passphrase, are
called after the store; from generation 1 on, `.g.` and the root key's id follow. So two changes of keys at once, or one
after another that was stopped, never take anything from each other: the log says which of their keys is in force.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from glob import escape
from itertools import chain
from pathlib import Path

from cairn.core.canonical import decode
from cairn.core.clock import Entropy
from cairn.core.errors import CairnError, IntegrityError, NotAllowed, ObjectExists, ObjectNotFound, TryAgain, WrongKey
from cairn.core.ids import StoreId
from cairn.registry.localfiles import KeyHome, write_private
from cairn.registry.secrets import StoreSecrets
from cairn.registry.state import State
from cairn.store.backends.contract import Backend
from cairn.store.crypto.keyfile import (
    dump_key_file,
    is_service_record,
    load_key_file,
    open_root_key,
    open_service_record,
    seal_root_key,
    seal_root_key_by,
)
from cairn.store.crypto.provider import RootKey, WrapContext, WrapPurpose
from cairn.store.crypto.services import service_at

# In the name of a key file whose root key is about to be in force, before the key's id.
NEXT = ".next-"
_STORE_WRAPS = "keys/store"
_ROOT_RECORDS = "keys/root"
_NAME = re.compile(r"[0-9a-f]{32}(\.(?P<generation>[1-9][0-9]*)\.[0-9a-f]{32})?", re.ASCII)
# A key file is one short line; whatever else was named must not fill the memory.
_KEY_FILE_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class KeySource:
    """How the user holds the root key: a passphrase, else a key file (`None`: the default one of the store).

    `ask` is called for a passphrase that is needed and not given; it may answer None. `service` is where a new store's
    root key is to be sealed by a key service instead; a store that exists says it by itself.
    """

    key_file: Path | None = None
    passphrase: str | None = field(default=None, repr=False)
    ask: Callable[[], str | None] | None = None
    service: str | None = None


def keep_root_key(
    backend: Backend, home: KeyHome, source: KeySource, store: StoreId, root: RootKey, entropy: Entropy
) -> Path | None:
    """Keep the root key of a new store, by key service, passphrase or key file; returns the key file."""
    record = root_record(store, root, source.service, source.passphrase, entropy)
    if record is not None:
        backend.create(root_record_name(store), [record])
        return None
    path = source.key_file or home.key_file(store)
    write_private(path, dump_key_file(store, root))
    return path


def root_record(
    store: StoreId, root: RootKey, service: str | None, passphrase: str | None, entropy: Entropy
) -> bytes | None:
    """A root key sealed by a key service, else under a passphrase; None if there is neither: a file is to hold it."""
    if service is not None:
        return seal_root_key_by(service_at(service), store, root)
    return seal_root_key(store, root, passphrase, entropy) if passphrase is not None else None


@dataclass(frozen=True, slots=True)
class RootKeys:
    """The root keys that a user can get at: usually one. A change of keys that was interrupted leaves two."""

    backend: Backend
    home: KeyHome
    source: KeySource
    store: StoreId
    _told: list[str] = field(default_factory=list, repr=False)

    def found(self) -> Iterator[tuple[RootKey, Path | None]]:
        """Root keys, and the key file that each belongs to, if any; those that are likely in force first.

        Raises:
            NotAllowed, WrongKey, IntegrityError: none, or what should hold it is another store's, or damaged.
        """
        path = self.source.key_file or self.home.key_file(self.store)
        found = False
        with suppress(FileNotFoundError):
            yield read_key_file(path, self.store), path
            found = True
        for root, _ in next_key_files(path, self.store):
            yield root, path
            found = True
        records = root_records(self.backend) if self.source.key_file is None else []
        if not records and not found:
            raise NotAllowed(
                f"no key file at {path} for store {self.store.hex()} ({self.backend.url})",
                hint="copy the key file of this store there, or name it with --key-file or CAIRN_KEY_FILE; or let an "
                "owner make you a member: send what 'cairn identity' prints",
            )
        yield from self._in_records(name for _, name in records)

    def _in_records(self, records: Iterable[str]) -> Iterator[tuple[RootKey, Path | None]]:
        failure: CairnError | None = None
        opened = False
        for name in records:
            try:
                root = self._in_record(name)
            except CairnError as error:  # one that never came into force must not stand before the one that did
                failure = failure or error
            else:
                yield root, None
                opened = True
        if failure is not None and not opened:
            raise failure

    def _in_record(self, record: str) -> RootKey:
        try:
            data = self.backend.read(record)
        except ObjectNotFound:
            raise TryAgain(f"root record {record} is gone: the root key was just changed") from None
        if is_service_record(data):
            return open_service_record(data, self.store, f"root record {record}")
        return open_root_key(data, self.store, self._passphrase(), f"root record {record}")

    def _passphrase(self) -> str:
        if not self._told:
            told = self.source.passphrase or (self.source.ask() if self.source.ask else None)
            if told is None:
                raise NotAllowed(f"{self.backend.url} needs its passphrase", hint="set CAIRN_PASSPHRASE")
            self._told.append(told)
        return self._told[0]


def open_secrets(roots: RootKeys) -> tuple[RootKey, Path | None, StoreSecrets]:
    """The first root key that opens the store, the key file that it belongs to, and what it opens.

    Raises:
        WrongKey: another root key is in force.
        NotAllowed, IntegrityError: see `RootKeys.found`, `store_secrets`.
    """
    failure: WrongKey | None = None
    # Twice: another process may have changed the root key between one look and the next.
    for root, path in chain(roots.found(), roots.found()):
        try:
            return root, path, store_secrets(roots.backend, root, roots.store)
        except WrongKey as error:
            failure = failure or error
    assert failure is not None
    raise failure


def is_in_force(root: RootKey, state: State) -> bool:
    """Whether a root key is the one that the log names: of a generation there may have been several."""
    same_key = not root.generation or root.key_id() == state.root_key
    return root.generation == state.root_generation and same_key


def next_key_file(path: Path, root: RootKey) -> Path:
    """Where the key file of a root key lies until it is known to be in force."""
    return path.with_name(f"{path.name}{NEXT}{root.key_id().hex()}")


def next_key_files(path: Path, store: StoreId) -> Iterator[tuple[RootKey, Path]]:
    """Root keys that were about to be in force, and where they lie, beside a key file; damaged ones are left out."""
    for beside in sorted(path.parent.glob(f"{escape(path.name)}{NEXT}*")):
        with suppress(FileNotFoundError, CairnError):
            yield read_key_file(beside, store), beside


def settle_key_file(path: Path, store: StoreId, root: RootKey, keep_old: bool = True) -> None:
    """Give the key file of the root key in force its name, if it does not have it yet.

    The step that counts takes a name away that is the key's own, so it happens once, whoever else tries; a newer key
    is written beside only after it.

    Args:
        keep_old: keep what had the name under that of its generation.
    """
    beside = next_key_file(path, root)
    if not beside.exists():
        return
    if keep_old:
        with suppress(FileNotFoundError, ObjectExists):
            older = read_key_file(path, store)
            write_private(file_of_generation(path, older.generation), dump_key_file(store, older))
    with suppress(FileNotFoundError):
        beside.replace(path)


def file_of_generation(key_file: Path, generation: int) -> Path:
    """Where a key file lies once another root key is in force."""
    return key_file.with_name(f"{key_file.name}.{generation}")


def read_key_file(path: Path, store: StoreId) -> RootKey:
    """The root key in a key file.

    Raises:
        FileNotFoundError: there is no such file.
        NotAllowed, WrongKey, IntegrityError: it cannot be read, is another store's, or damaged.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_KEY_FILE_BYTES_MAX)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NotAllowed(f"key file {path} cannot be read: {error.strerror}") from None
    return load_key_file(data, store, f"key file {path}")


def store_secrets(backend: Backend, root: RootKey, store: StoreId) -> StoreSecrets:
    """What a root key's wrap of the store's keys holds.

    Raises:
        WrongKey: another root key is in force.
        IntegrityError: the wrap is damaged or lost.
    """
    name = store_wrap_name(store, root.generation, root.key_id())
    try:
        wrapped = backend.read(name)
    except ObjectNotFound:
        if any(True for _ in backend.list(_STORE_WRAPS)):
            raise WrongKey(
                f"the root key of generation {root.generation} of {backend.url} is retired: an owner made a new one",
                hint="use the newest key file: copy it from whoever changed the keys; where a change of the passphrase "
                "was stopped, the one before",
            ) from None
        raise IntegrityError(f"{backend.url} has lost the wrap {name}", hint="restore it from a backup") from None
    what = f"wrap {name}"
    return decode(root.unwrap(wrapped, WrapContext(store, WrapPurpose.STORE_KEYS), what), StoreSecrets, what)


def store_wrap_name(store: StoreId, generation: int = 0, key: bytes = b"") -> str:
    """Name of the wrap of a store's keys under a root key, by its generation and id."""
    return f"{_STORE_WRAPS}/{_of_root(store, generation, key)}"


def root_record_name(store: StoreId, generation: int = 0, key: bytes = b"") -> str:
    """Name of the record that holds a root key under a passphrase or a service."""
    return f"{_ROOT_RECORDS}/{_of_root(store, generation, key)}"


def root_records(backend: Backend) -> list[tuple[int, str]]:
    """Generations and names of the root records that there are, newest first."""
    return sorted(_named(backend, _ROOT_RECORDS), reverse=True)


def store_wraps(backend: Backend) -> list[tuple[int, str]]:
    """Generations and names of the wraps of the store's keys that there are."""
    return list(_named(backend, _STORE_WRAPS))


def _named(backend: Backend, folder: str) -> Iterator[tuple[int, str]]:
    for listed in backend.list(folder):
        match = _NAME.fullmatch(listed.name.rpartition("/")[2])
        if match:
            yield int(match["generation"] or 0), listed.name


def _of_root(store: StoreId, generation: int, key: bytes) -> str:
    return store.hex() + (f".{generation}.{key.hex()}" if generation else "")
