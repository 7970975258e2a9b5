"""Root keys of a store: where they are kept, and what they open.

The wrap of the store's keys under the root key of generation g, and its root record in a store with a passphrase, are
called after the store; from generation 1 on, `.g` follows.
"""

from collections.abc import Callable
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


def root_key(backend: Backend, home: KeyHome, source: KeySource, store: StoreId) -> tuple[RootKey, Path | None]:
    """The root key, and the key file that it came from, if any."""
    path = source.key_file or home.key_file(store)
    records = root_records(backend) if source.key_file is None and not path.exists() else {}
    if records:
        record = records[max(records)]
        data = backend.read(record)
        if is_service_record(data):
            return open_service_record(data, store, f"root record {record}"), None
        passphrase = source.passphrase or (source.ask() if source.ask else None)
        if passphrase is None:
            raise NotAllowed(f"{backend.url} needs its passphrase", hint="set CAIRN_PASSPHRASE")
        return open_root_key(data, store, passphrase, f"root record {record}"), None
    try:
        return read_key_file(path, store), path
    except FileNotFoundError:
        raise NotAllowed(
            f"no key file at {path} for store {store.hex()} ({backend.url})",
            hint="copy the key file of this store there, or name it with --key-file or CAIRN_KEY_FILE; or let an owner "
            "make you a member: send what 'cairn identity' prints",
        ) from None


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
                hint="use the newest key file; an interrupted change of keys leaves it beside the old one, as ...next",
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
