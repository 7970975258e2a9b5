"""An opened store: where it is, whose it is, and the keys at hand. `create_store` makes one, `open_store` opens one.

Order of creation: root record or key file -> wrap of the store's keys -> init entry -> format record. Until the
format record exists there is no store, so an interrupted `init` leaves nothing that counts.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from blake3 import blake3

from cairn.core.canonical import decode, encode
from cairn.core.clock import Clock, Entropy, SystemClock, SystemEntropy
from cairn.core.errors import IntegrityError, NotAllowed, ObjectExists, ObjectNotFound
from cairn.core.ids import RANDOM_ID_BYTES, StoreId, TenantId
from cairn.core.limits import LOG_ENTRY_BYTES_MAX, SESSION_HEARTBEAT_SECONDS, SESSION_SILENCE_SECONDS
from cairn.registry.entries import FORMAT as ENTRY_FORMAT
from cairn.registry.entries import Entry, Founding, Init, open_entry, payload_of, seal_entry
from cairn.registry.formatfile import NAME as FORMAT_NAME
from cairn.registry.formatfile import read_format, write_format
from cairn.registry.localfiles import KeyHome, write_private
from cairn.registry.merkle import EMPTY_ROOT
from cairn.registry.names import entry_name
from cairn.store.backends.contract import Backend
from cairn.store.backends.probe import probe
from cairn.store.chunkstore import StoreAccess
from cairn.store.crypto.keyfile import dump_key_file, load_key_file, open_root_key, seal_root_key
from cairn.store.crypto.provider import KeyProvider, RootKey, WrapContext, WrapPurpose
from cairn.store.crypto.signing import Identity
from cairn.store.crypto.tenant import TenantKeys

_STORE_WRAPS = "keys/store"
_ROOT_RECORDS = "keys/root"
# A key file is one short line; whatever else was named must not fill the memory.
_KEY_FILE_BYTES_MAX = 64 << 10


class StoreSecrets(msgspec.Struct, frozen=True):
    """What the first wrap holds: the tenant's secret, random class keys, the recovery identity.

    All stores of a tenant share `tenant_secret` and `k_ckpt`, hence ids; the rest is the store's own.
    """

    tenant_secret: bytes
    k_index: bytes
    k_log: bytes
    k_ckpt: bytes
    recovery_seed: bytes

    def __repr__(self) -> str:
        return "StoreSecrets(<secret>)"


@dataclass(frozen=True, slots=True)
class OpenStore:
    """Everything that the layers above need to work on one store."""

    backend: Backend
    store: StoreId
    tenant: TenantId
    keys: TenantKeys
    secrets: StoreSecrets = field(repr=False)
    provider: KeyProvider = field(repr=False)
    identity: Identity
    home: KeyHome
    clock: Clock
    entropy: Entropy
    key_file: Path | None

    @property
    def wrap_name(self) -> str:
        """Name of the wrap of the store's keys."""
        return _wrap_name(self.store)

    def identity_among(self, owners: Collection[bytes]) -> Identity | None:
        """The identity to sign with: the user's own, else that of whoever holds the root key; None if neither may.

        So a restored key file is enough to go on, also where the user's own identity is lost.
        """
        if self.identity.actor in owners:
            return self.identity
        recovery = Identity(self.secrets.recovery_seed)
        return recovery if recovery.actor in owners else None

    @property
    def access(self) -> StoreAccess:
        """What the chunk store needs."""
        return StoreAccess(self.backend, self.store, self.keys, self.secrets.k_index, self.entropy)


@dataclass(frozen=True, slots=True)
class KeySource:
    """How the user holds the root key: a passphrase, else a key file (`None`: the default one of the store).

    `ask` is called for a passphrase that is needed and not given; it may answer None.
    """

    key_file: Path | None = None
    passphrase: str | None = field(default=None, repr=False)
    ask: Callable[[], str | None] | None = None


def create_store(
    backend: Backend,
    home: KeyHome,
    source: KeySource,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
    twin: OpenStore | None = None,
) -> tuple[OpenStore, Path | None]:
    """Create a store; returns it and the key file that was written, if any.

    Args:
        twin: a store whose tenant the new one shall belong to, so that content travels between them as it is; by
            default it gets a tenant of its own.

    Raises:
        ObjectExists: there is a store here already.
    """
    clock, entropy = clock or SystemClock(), entropy or SystemEntropy()
    _refuse_existing(backend)
    capabilities = probe(backend, entropy)
    identity = home.identity(entropy)
    store = StoreId(entropy.token(RANDOM_ID_BYTES))
    founding = encode(Founding(1, identity.actor, entropy.token(16)))
    if twin:
        founding = founding_of(twin, twin.backend.read(entry_name(0), 0, LOG_ENTRY_BYTES_MAX + 1))
    tenant = tenant_id(founding)
    secrets = StoreSecrets(*(entropy.token(32) for _ in range(5)))
    if twin:
        shared = twin.secrets
        secrets = msgspec.structs.replace(secrets, tenant_secret=shared.tenant_secret, k_ckpt=shared.k_ckpt)
    root = RootKey(0, entropy.token(32))
    key_file = _keep_root_key(backend, home, source, store, root, entropy)
    wrap = root.wrap(encode(secrets), WrapContext(store, WrapPurpose.STORE_KEYS), entropy)
    backend.create(_wrap_name(store), [wrap])
    init = Init(
        founding,
        identity.actor,
        Identity(secrets.recovery_seed).actor,
        msgspec.structs.asdict(capabilities),
        SESSION_HEARTBEAT_SECONDS,
        SESSION_SILENCE_SECONDS,
    )
    entry = Entry(
        ENTRY_FORMAT, tenant, store, 0, EMPTY_ROOT, "init", identity.actor,
        entropy.token(16), clock.wall_ns(), encode(init),
    )  # fmt: skip
    try:
        backend.create(entry_name(0), [seal_entry(entry, identity, secrets.k_log, entropy)])
        write_format(backend, store, tenant)
    except ObjectExists:  # another `init` was first: our keys open nothing, and must not pass for somebody's only key
        backend.delete(_wrap_name(store))
        backend.delete(f"{_ROOT_RECORDS}/{store.hex()}")
        if key_file is not None:
            key_file.unlink()
        raise
    keys = TenantKeys.from_secret(tenant, secrets.tenant_secret)
    opened = OpenStore(backend, store, tenant, keys, secrets, root, identity, home, clock, entropy, key_file)
    return opened, key_file


def founding_of(opened: OpenStore, stored: bytes) -> bytes:
    """The founding record of a store's tenant, from its log entry 0.

    Raises:
        IntegrityError: it is damaged, or another tenant's.
    """
    return _init_entry(opened, stored)[1].founding


def first_owners(opened: OpenStore, stored: bytes) -> tuple[bytes, ...]:
    """Actors whom log entry 0 makes owners, by the fold's rule.

    Raises:
        IntegrityError: it is damaged, or another tenant's.
    """
    entry, init = _init_entry(opened, stored)
    return (init.owner, init.recovery) if init.owner == entry.actor else ()


def _init_entry(opened: OpenStore, stored: bytes) -> tuple[Entry, Init]:
    entry = open_entry(stored, 0, opened.tenant, opened.store, opened.secrets.k_log)
    payload = payload_of(entry)
    if not isinstance(payload, Init) or tenant_id(payload.founding) != opened.tenant:
        raise IntegrityError("log entry 0 is not the init entry of this store's tenant")
    return entry, payload


def _refuse_existing(backend: Backend) -> None:
    present = next(iter(backend.list("")), None)
    if present is None:
        return
    try:
        backend.size(FORMAT_NAME)
    except ObjectNotFound:
        raise ObjectExists(
            f"{backend.url} is not empty: it holds {present.name!r} and no store",
            hint="if an earlier 'cairn init' was interrupted here, remove what it left; else name another place",
        ) from None
    raise ObjectExists(f"{backend.url} holds a store already", hint="use it, or name another place")


def _keep_root_key(
    backend: Backend, home: KeyHome, source: KeySource, store: StoreId, root: RootKey, entropy: Entropy
) -> Path | None:
    if source.passphrase is not None:
        record = seal_root_key(store, root, source.passphrase, entropy)
        backend.create(f"{_ROOT_RECORDS}/{store.hex()}", [record])
        return None
    path = source.key_file or home.key_file(store)
    write_private(path, dump_key_file(store, root))
    return path


def open_store(
    backend: Backend,
    home: KeyHome,
    source: KeySource,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
) -> OpenStore:
    """Open an existing store; writes nothing into it.

    Raises:
        NotAStore, NewerFormat: see `read_format`.
        NotAllowed, WrongKey: no key, or the key of another store.
        IntegrityError: format record, root record or wrap is damaged.
    """
    clock, entropy = clock or SystemClock(), entropy or SystemEntropy()
    store, tenant = read_format(backend)
    root, key_file = _root_key(backend, home, source, store)
    secrets = _store_secrets(backend, root, store)
    keys = TenantKeys.from_secret(tenant, secrets.tenant_secret)
    identity = home.identity(entropy)
    return OpenStore(backend, store, tenant, keys, secrets, root, identity, home, clock, entropy, key_file)


def _root_key(backend: Backend, home: KeyHome, source: KeySource, store: StoreId) -> tuple[RootKey, Path | None]:
    """The root key, and the key file that it came from, if any."""
    record = f"{_ROOT_RECORDS}/{store.hex()}"
    path = source.key_file or home.key_file(store)
    if source.key_file is None and not path.exists() and any(one.name == record for one in backend.list(_ROOT_RECORDS)):
        passphrase = source.passphrase or (source.ask() if source.ask else None)
        if passphrase is None:
            raise NotAllowed(f"{backend.url} needs its passphrase", hint="set CAIRN_PASSPHRASE")
        return open_root_key(backend.read(record), store, passphrase, f"root record {record}"), None
    try:
        with path.open("rb") as file:
            data = file.read(_KEY_FILE_BYTES_MAX)
    except FileNotFoundError:
        raise NotAllowed(
            f"no key file at {path} for store {store.hex()} ({backend.url})",
            hint="copy the key file of this store there, or name it with --key-file or CAIRN_KEY_FILE",
        ) from None
    except OSError as error:
        raise NotAllowed(f"key file {path} cannot be read: {error.strerror}") from None
    return load_key_file(data, store, f"key file {path}"), path


def _store_secrets(backend: Backend, root: RootKey, store: StoreId) -> StoreSecrets:
    what = f"wrap {_wrap_name(store)}"
    try:
        wrapped = backend.read(_wrap_name(store))
    except ObjectNotFound:
        raise IntegrityError(f"{backend.url} has lost the {what}", hint="restore it from a backup") from None
    return decode(root.unwrap(wrapped, WrapContext(store, WrapPurpose.STORE_KEYS), what), StoreSecrets, what)


def _wrap_name(store: StoreId) -> str:
    return f"{_STORE_WRAPS}/{store.hex()}"


def tenant_id(founding: bytes) -> TenantId:
    """Id of a tenant from its founding record."""
    return TenantId(blake3(founding).digest(length=16))
