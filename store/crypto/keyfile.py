"""How a root key is kept: a key file on the user's machine, or in the store, sealed by a passphrase or a key service.

All are JSON texts, so that a person who finds one sees what it is. The passphrase form is stretched by
Argon2id (RFC 9106, second recommended choice: 64 MiB, 3 passes, 4 lanes) and lies in the store, so a passphrase alone
opens the store from anywhere; its strength is all that stands between a storage operator and the data.
"""

import json
from typing import Any

from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from cairn.core.clock import Entropy
from cairn.core.errors import IntegrityError, NewerFormat, WrongKey
from cairn.core.ids import StoreId
from cairn.store.crypto.provider import RootKey
from cairn.store.crypto.services import KeyService, service_at

VERSION = 1
_KEY_BYTES = 32
_MEMORY_KIB, _PASSES, _LANES = 64 * 1024, 3, 4
# A hostile record must not make us spend gigabytes: at most 1 GiB and 16 passes.
_MEMORY_KIB_MAX, _PASSES_MAX, _LANES_MAX = 1 << 20, 16, 64


def dump_key_file(store: StoreId, root: RootKey) -> bytes:
    """Text of a key file; keep it at mode 0600."""
    return _dump(
        {"cairn key file": VERSION, "store": store.hex(), "generation": root.generation, "root key": root.key.hex()}
    )


def load_key_file(data: bytes, store: StoreId, what: str) -> RootKey:
    """Read a key file.

    Raises:
        WrongKey: it belongs to another store.
        IntegrityError: it is not a whole key file.
    """
    fields = _load(data, "cairn key file", what)
    try:
        owner, root = fields["store"], RootKey(_generation(fields), bytes.fromhex(fields["root key"]))
        if len(root.key) != _KEY_BYTES:
            raise ValueError
    except (KeyError, TypeError, ValueError, OverflowError):
        raise IntegrityError(f"{what} lacks a field or holds an impossible one") from None
    if owner != store.hex():
        raise WrongKey(
            f"{what} belongs to store {owner}, not to {store.hex()}", hint="name the right one with --key-file"
        )
    return root


def seal_root_key(store: StoreId, root: RootKey, passphrase: str, entropy: Entropy) -> bytes:
    """Text of a root record for the store."""
    salt, nonce = entropy.token(16), entropy.token(12)
    key = _stretch(passphrase, salt, _MEMORY_KIB, _PASSES, _LANES)
    return _dump(
        {
            "cairn root record": VERSION,
            "store": store.hex(),
            "generation": root.generation,
            "argon2id": {"salt": salt.hex(), "memory KiB": _MEMORY_KIB, "passes": _PASSES, "lanes": _LANES},
            "sealed": (nonce + AESGCM(key).encrypt(nonce, root.key, _root_aad(store, root.generation))).hex(),
        }
    )


def open_root_key(data: bytes, store: StoreId, passphrase: str, what: str) -> RootKey:
    """Open a root record.

    Raises:
        WrongKey: the passphrase is not the one.
        IntegrityError: the record is damaged.
    """
    fields = _load(data, "cairn root record", what)
    try:
        kdf, generation, sealed = fields["argon2id"], _generation(fields), bytes.fromhex(fields["sealed"])
        salt, cost = bytes.fromhex(kdf["salt"]), (int(kdf["memory KiB"]), int(kdf["passes"]), int(kdf["lanes"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        raise IntegrityError(f"{what} lacks a field or holds an impossible one") from None
    if fields.get("store") != store.hex():
        raise IntegrityError(f"{what} belongs to another store")
    if cost[0] > _MEMORY_KIB_MAX or cost[1] > _PASSES_MAX or cost[2] > _LANES_MAX:
        raise IntegrityError(f"{what} asks for more work than any record of ours")
    # Below these Argon2id is not defined (RFC 9106, 3.1).
    if len(salt) < 8 or cost[1] < 1 or cost[2] < 1 or cost[0] < 8 * cost[2]:
        raise IntegrityError(f"{what} asks for impossible work")
    try:
        key = _stretch(passphrase, salt, *cost)
        return RootKey(generation, AESGCM(key).decrypt(sealed[:12], sealed[12:], _root_aad(store, generation)))
    except (InvalidTag, ValueError):
        raise WrongKey("the passphrase does not open this store", hint="check CAIRN_PASSPHRASE and try again") from None


def seal_root_key_by(service: KeyService, store: StoreId, root: RootKey) -> bytes:
    """Text of a service record: the root key, sealed by a key service for this store and generation."""
    return _dump(
        {
            "cairn service record": VERSION,
            "store": store.hex(),
            "generation": root.generation,
            "service": service.address,
            "sealed": service.seal(root.key, _service_context(store, root.generation)).hex(),
        }
    )


def is_service_record(data: bytes) -> bool:
    """Whether a record is one that a key service opens."""
    return b'"cairn service record"' in data[:64]


def service_of(data: bytes, store: StoreId, what: str) -> str:
    """Address of the service that opens a record.

    Raises:
        IntegrityError: the record is damaged.
    """
    return _service_fields(data, store, what)[0]


def open_service_record(data: bytes, store: StoreId, what: str) -> RootKey:
    """Have a service record opened by its service.

    Raises:
        IntegrityError: the record is damaged, or made for another store.
        NotAllowed, Unavailable: the service refuses, or does not answer.
    """
    address, generation, sealed = _service_fields(data, store, what)
    key = service_at(address).open(sealed, _service_context(store, generation), what)
    if len(key) != _KEY_BYTES:
        raise IntegrityError(f"{what} holds no root key")
    return RootKey(generation, key)


def _service_fields(data: bytes, store: StoreId, what: str) -> tuple[str, int, bytes]:
    fields = _load(data, "cairn service record", what)
    try:
        address, generation, sealed = str(fields["service"]), _generation(fields), bytes.fromhex(fields["sealed"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise IntegrityError(f"{what} lacks a field or holds an impossible one") from None
    if fields.get("store") != store.hex():
        raise IntegrityError(f"{what} belongs to another store")
    return address, generation, sealed


def _service_context(store: StoreId, generation: int) -> dict[str, str]:
    return {"purpose": "cairn root key", "store": store.hex(), "generation": str(generation)}


def _generation(fields: dict[str, Any]) -> int:
    generation = int(fields["generation"])
    if not 0 <= generation < 1 << 16:
        raise ValueError
    return generation


def _stretch(passphrase: str, salt: bytes, memory_kib: int, passes: int, lanes: int) -> bytes:
    kdf = Argon2id(salt=salt, length=32, iterations=passes, lanes=lanes, memory_cost=memory_kib)
    return kdf.derive(passphrase.encode())


def _root_aad(store: StoreId, generation: int) -> bytes:
    return b"cairn/1/root" + store + generation.to_bytes(2, "little")


def _dump(fields: dict[str, Any]) -> bytes:
    fields["check"] = _check(fields)
    return (json.dumps(fields, indent=1) + "\n").encode()


def _load(data: bytes, title: str, what: str) -> dict[str, Any]:
    try:
        fields = json.loads(data)
        version, check = fields.pop(title), fields.pop("check")
        fields = {title: version, **fields}
    except (ValueError, KeyError, AttributeError, RecursionError):
        raise IntegrityError(f"{what} is damaged, or no {title}") from None
    if _check(fields) != check:
        raise IntegrityError(f"{what} is damaged: its check value does not match")
    if version != VERSION:
        raise NewerFormat(f"{what} has version {version}; this Cairn knows {VERSION}", hint="upgrade Cairn")
    if _dump(dict(fields)) != data:
        raise IntegrityError(f"{what} is damaged: it is not spelled as it was written")
    return fields


def _check(fields: dict[str, Any]) -> str:
    return blake3(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:32]
