"""Root keys of a store: where they are kept, and what they open.

The wrap of the store's keys under the root key of generation g, and its root record in a store with a passphrase, are
called after the store; from generation 1 on, `.g` follows.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cairn.core.canonical import decode
from cairn.core.clock import Entropy
from cairn.core.errors import IntegrityError, NotAllowed, ObjectNotFound, WrongKey
from cairn.core.ids import StoreId
from cairn.registry.localfiles import KeyHome, write_private
from cairn.registry.secrets import StoreSecrets
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

# Ending of a key file whose root key is about to be in force.
NEXT = ".next"
_STORE_WRAPS = "keys/store"
_ROOT_RECORDS = "keys/root"
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
        backend.create(root_record_name(store, root.generation), [record])
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
        records = root_records(self.backend) if self.source.key_file is None and not path.exists() else {}
        if records:
            yield from self._in_records(records)
            return
        try:
            yield read_key_file(path, self.store), path
        except FileNotFoundError:
            raise NotAllowed(
                f"no key file at {path} for store {self.store.hex()} ({self.backend.url})",
                hint="copy the key file of this store there, or name it with --key-file or CAIRN_KEY_FILE; or let an "
                "owner make you a member: send what 'cairn identity' prints",
            ) from None
        with suppress(FileNotFoundError):
            yield read_key_file(path.with_name(path.name + NEXT), self.store), path

    def _in_records(self, records: dict[int, str]) -> Iterator[tuple[RootKey, Path | None]]:
        failure: WrongKey | None = None
        opened = False
        for generation in sorted(records, reverse=True):
            try:
                yield self._in_record(records[generation]), None
                opened = True
            except WrongKey as error:
                failure = failure or error
        if failure is not None and not opened:
            raise failure

    def _in_record(self, record: str) -> RootKey:
        data = self.backend.read(record)
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
    for root, path in roots.found():
        try:
            return root, path, store_secrets(roots.backend, root, roots.store)
        except WrongKey as error:
            failure = failure or error
    assert failure is not None
    raise failure


def settle_key_file(path: Path, store: StoreId, generation: int) -> None:
    """Give the key file of the generation in force its name, where a change of keys was stopped before it did."""
    beside = path.with_name(path.name + NEXT)
    with suppress(FileNotFoundError):
        if read_key_file(beside, store).generation == generation:
            older = read_key_file(path, store).generation
            path.replace(file_of_generation(path, older))
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
    name = store_wrap_name(store, root.generation)
    try:
        wrapped = backend.read(name)
    except ObjectNotFound:
        if any(True for _ in backend.list(_STORE_WRAPS)):
            raise WrongKey(
                f"the root key of generation {root.generation} of {backend.url} is retired: an owner made a new one",
                hint="use the newest key file: copy it from whoever changed the keys",
            ) from None
        raise IntegrityError(f"{backend.url} has lost the wrap {name}", hint="restore it from a backup") from None
    what = f"wrap {name}"
    return decode(root.unwrap(wrapped, WrapContext(store, WrapPurpose.STORE_KEYS), what), StoreSecrets, what)


def store_wrap_name(store: StoreId, generation: int) -> str:
    """Name of the wrap of a store's keys under a root key."""
    return f"{_STORE_WRAPS}/{_of_generation(store, generation)}"


def root_record_name(store: StoreId, generation: int) -> str:
    """Name of the record that holds a root key under a passphrase."""
    return f"{_ROOT_RECORDS}/{_of_generation(store, generation)}"


def root_records(backend: Backend) -> dict[int, str]:
    """Names of the root records that there are, by generation."""
    found = {}
    for listed in backend.list(_ROOT_RECORDS):
        generation = listed.name.rpartition("/")[2].partition(".")[2] or "0"
        if generation.isascii() and generation.isdigit():
            found[int(generation)] = listed.name
    return found


def _of_generation(store: StoreId, generation: int) -> str:
    return store.hex() + (f".{generation}" if generation else "")
