"""An opened store: where it is, whose it is, and the keys at hand. `create_store` makes one, `open_store` opens one.

Order of creation: root record or key file -> wrap of the store's keys -> init entry -> format record. Until the
format record exists there is no store, so an interrupted `init` leaves nothing that counts.
"""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
from blake3 import blake3

from cairn.core.canonical import encode
from cairn.core.clock import Clock, Entropy, SystemClock, SystemEntropy
from cairn.core.errors import CairnError, IntegrityError, ObjectExists, ObjectNotFound
from cairn.core.ids import RANDOM_ID_BYTES, StoreId, TenantId
from cairn.core.limits import LOG_ENTRY_BYTES_MAX, SESSION_HEARTBEAT_SECONDS, SESSION_SILENCE_SECONDS
from cairn.registry.entries import FORMAT as ENTRY_FORMAT
from cairn.registry.entries import Entry, Founding, Init, open_entry, payload_of, seal_entry
from cairn.registry.formatfile import NAME as FORMAT_NAME
from cairn.registry.formatfile import read_format, write_format
from cairn.registry.localfiles import KeyHome
from cairn.registry.memberwraps import newest_wrap, open_member_wrap
from cairn.registry.merkle import EMPTY_ROOT
from cairn.registry.names import entry_name
from cairn.registry.rights import Role
from cairn.registry.rootkeys import KeySource as KeySource
from cairn.registry.rootkeys import (
    RootKeys,
    keep_root_key,
    open_secrets,
    root_record_name,
    store_secrets,
    store_wrap_name,
)
from cairn.registry.secrets import Secrets, StoreSecrets
from cairn.store.backends.contract import Backend
from cairn.store.backends.probe import probe
from cairn.store.chunkstore import StoreAccess
from cairn.store.crypto.provider import KeyProvider, RootKey, WrapContext, WrapPurpose
from cairn.store.crypto.signing import Identity
from cairn.store.crypto.tenant import TenantKeys, held


@dataclass(frozen=True, slots=True)
class OpenStore:
    """Everything that the layers above need to work on one store.

    Args:
        content: the tenant's content keys; None for members whose role does not come with them.
        root: the root key, or what speaks for it; None for members who are no owners.
        member_wrap: hash of the member's wrap that all this came from, if it did.
        roots: where a root key that comes after the one at hand can be found.
    """

    backend: Backend
    store: StoreId
    tenant: TenantId
    secrets: Secrets = field(repr=False)
    content: TenantKeys | None = field(repr=False)
    root: KeyProvider | None = field(repr=False)
    identity: Identity
    home: KeyHome
    clock: Clock
    entropy: Entropy
    key_file: Path | None
    member_wrap: bytes | None = None
    roots: RootKeys | None = field(default=None, repr=False)

    @property
    def keys(self) -> TenantKeys:
        """The tenant's content keys.

        Raises:
            NotAllowed: they were not given to this user.
        """
        return self.access.keys

    @property
    def provider(self) -> KeyProvider:
        """What wraps every other key.

        Raises:
            NotAllowed: this user is no owner.
        """
        return held(self.root, "the root key", Role.OWNER)

    def identity_among(self, owners: Collection[bytes]) -> Identity | None:
        """The identity to sign with: the user's own, else that of whoever holds the root key; None if neither may.

        So a restored key file is enough to go on, also where the user's own identity is lost.
        """
        if self.identity.actor in owners:
            return self.identity
        if not isinstance(self.secrets, StoreSecrets):
            return None
        recovery = Identity(self.secrets.recovery_seed)
        return recovery if recovery.actor in owners else None

    @property
    def access(self) -> StoreAccess:
        """What the chunk store needs."""
        return StoreAccess(self.backend, self.store, self.content, self.secrets.k_index, self.entropy)


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
        shared = twin.secrets  # a member who is no owner has no tenant to give, and is told so here
        secrets = msgspec.structs.replace(secrets, tenant_secret=shared.tenant_secret, k_ckpt=shared.k_ckpt)
    root = RootKey(0, entropy.token(32))
    key_file = keep_root_key(backend, home, source, store, root, entropy)
    wrap = root.wrap(encode(secrets), WrapContext(store, WrapPurpose.STORE_KEYS), entropy)
    backend.create(store_wrap_name(store, 0), [wrap])
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
        backend.delete(store_wrap_name(store, 0))
        backend.delete(root_record_name(store, 0))
        if key_file is not None:
            key_file.unlink()
        raise
    content = secrets.content(tenant)
    roots = RootKeys(backend, home, source, store)
    opened = OpenStore(
        backend, store, tenant, secrets, content, root, identity, home, clock, entropy, key_file, roots=roots
    )
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
    identity, roots = home.identity(entropy), RootKeys(backend, home, source, store)
    name = None
    if source.key_file is None and source.passphrase is None and not home.key_file(store).exists():
        name = newest_wrap(backend, identity.public)
    secrets: Secrets
    root: RootKey | None
    key_file, member_wrap = None, None
    if name is not None:
        secrets, member_wrap = open_member_wrap(backend, store, identity, name)
        root = RootKey(secrets.root.generation, secrets.root.key) if secrets.root is not None else None
        if root is not None:
            secrets = store_secrets(backend, root, store)
    else:
        root, key_file, secrets = open_secrets(roots)
    content = secrets.content(tenant)
    return OpenStore(
        backend, store, tenant, secrets, content, root, identity, home, clock, entropy, key_file, member_wrap, roots
    )


def renewed(opened: OpenStore, generation: int) -> OpenStore | None:
    """The same store with the root key of the generation in force; None where it cannot be found here."""
    root: RootKey | None = None
    with suppress(CairnError):
        if opened.member_wrap is not None:
            name = newest_wrap(opened.backend, opened.identity.public)
            secrets, hash_ = open_member_wrap(opened.backend, opened.store, opened.identity, name or "")
            opened = replace(opened, member_wrap=hash_)
            root = RootKey(secrets.root.generation, secrets.root.key) if secrets.root is not None else None
        elif opened.roots is not None:
            root = next((one for one, _ in opened.roots.found() if one.generation == generation), None)
    found = root is not None and root.generation == generation and root != opened.root
    return replace(opened, root=root) if found else None


def tenant_id(founding: bytes) -> TenantId:
    """Id of a tenant from its founding record."""
    return TenantId(blake3(founding).digest(length=16))
