"""A second reader of Cairn stores, written from `docs/format/v1.md` alone: nothing of Cairn is imported.

Small rather than fast: whole objects in memory, one thread, no cache. Section numbers are the document's. This file
knows encodings, keys and sealed objects; `reader_log.py` the log; `reader_collection.py` what lies where by the log;
`reader_sessions.py` writers and readers at work; `reader_content.py` packs; `reader_tree.py` manifests, tensors and
files; `reader_values.py` plain values.
"""

import hmac
import json
import struct
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

MIB = 1 << 20
LOG_ENTRY, INDEX_PIECE, PACK_FOOTER, BODY, REACHABILITY, SESSION = 1, 2, 3, 4, 5, 6
CHUNK, PAGE = 1, 2
META, FILES = 0, 4
Fields = dict[str, Any]


class Damaged(Exception):
    """Bytes are not what the format says."""


def require(condition: bool, rule: str) -> None:
    """Refuse what breaks a rule."""
    if not condition:
        raise Damaged(rule)


# --- Section 2: canonical encoding ------------------------------------------------------------

_INTEGERS = (
    (0, 0x7F, b"", ">B"), (-0x20, -1, b"", ">b"),
    (0, 0xFF, b"\xcc", ">B"), (0, 0xFFFF, b"\xcd", ">H"), (0, 0xFFFFFFFF, b"\xce", ">I"),
    (0, 2**64 - 1, b"\xcf", ">Q"),
    (-0x80, -1, b"\xd0", ">b"), (-0x8000, -1, b"\xd1", ">h"),
    (-(2**31), -1, b"\xd2", ">i"), (-(2**63), -1, b"\xd3", ">q"),
)  # fmt: skip


def encode(value: Any) -> bytes:
    """The one encoding of a value."""
    if value is None or isinstance(value, bool):
        return b"\xc0" if value is None else bytes((0xC2 + value,))
    if isinstance(value, int):
        head, form = next((head, form) for low, high, head, form in _INTEGERS if low <= value <= high)
        return head + struct.pack(form, value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode()
        return _head(len(data), 0xA0, 32, 0xD9, 0xDA) + data
    if isinstance(value, bytes):
        return _head(len(value), 0, 0, 0xC4, 0xC5) + value
    if isinstance(value, list):
        return _head(len(value), 0x90, 16, None, 0xDC) + b"".join(map(encode, value))
    require(isinstance(value, dict) and all(isinstance(key, str) for key in value), "a value of a foreign type")
    items = sorted(value.items(), key=lambda item: item[0].encode())
    return _head(len(items), 0x80, 16, None, 0xDE) + b"".join(encode(k) + encode(v) for k, v in items)


def _head(length: int, short: int, short_end: int, one: int | None, two: int) -> bytes:
    if length < short_end:
        return bytes((short | length,))
    if one is not None and length < 1 << 8:
        return struct.pack(">BB", one, length)
    return struct.pack(">BH", two, length) if length < 1 << 16 else struct.pack(">BI", two + 1, length)


def decode(data: bytes) -> Any:
    """A value from its canonical encoding; another spelling is refused."""
    try:
        value = msgspec.msgpack.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Damaged(str(error)) from None
    require(encode(value) == data, "not canonical")
    return value


# --- Section 3: primitives --------------------------------------------------------------------


def hash_of(data: bytes, key: bytes | None = None, length: int = 32) -> bytes:
    """BLAKE3."""
    return (blake3(data) if key is None else blake3(data, key=key)).digest(length=length)


def derive(secret: bytes, label: str, length: int = 32, salt: bytes = bytes(32)) -> bytes:
    """HKDF-SHA256 (RFC 5869) under a label."""
    key, block, out = hmac.digest(salt, secret, "sha256"), b"", b""
    while len(out) < length:
        block = hmac.digest(key, block + b"cairn/1/" + label.encode() + bytes((len(out) // 32 + 1,)), "sha256")
        out += block
    return out[:length]


def open_gcm(key: bytes, nonce: bytes, sealed: bytes, extra: bytes) -> bytes:
    """AES-256-GCM."""
    try:
        return AESGCM(key).decrypt(nonce, sealed, extra)
    except (InvalidTag, ValueError):
        raise Damaged("authentication fails") from None


# --- Sections 4 and 5: format record, key file, root record ------------------------------------


def read_json(data: bytes, title: str) -> Fields:
    """Fields of a JSON record that carries a check value."""
    try:
        fields = json.loads(data)
        check = fields.pop("check")
        require(check == hash_of(json.dumps(fields, sort_keys=True).encode()).hex()[:32], "check value")
        require(fields[title] == 1, "another version")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise Damaged(f"no {title}") from None
    return dict(fields, check=check)


def read_key_file(text: bytes, store: bytes) -> bytes:
    """The root key in a key file."""
    fields = read_json(text, "cairn key file")
    require(fields["store"] == store.hex(), "key file of another store")
    return bytes.fromhex(fields["root key"])


def open_root_record(text: bytes, store: bytes, passphrase: str) -> bytes:
    """The root key that a passphrase opens."""
    fields = read_json(text, "cairn root record")
    cost, sealed = fields["argon2id"], bytes.fromhex(fields["sealed"])
    memory, passes, lanes = cost["memory KiB"], cost["passes"], cost["lanes"]
    require(fields["store"] == store.hex() and memory <= MIB and passes <= 16 and lanes <= 64, "root record")
    kdf = Argon2id(salt=bytes.fromhex(cost["salt"]), length=32, iterations=passes, lanes=lanes, memory_cost=memory)
    extra = b"cairn/1/root" + store + struct.pack("<H", fields["generation"])
    return open_gcm(kdf.derive(passphrase.encode()), sealed[:12], sealed[12:], extra)


class Vault:
    """The keys of one store in a folder, and what they open."""

    def __init__(self, folder: Path, key_text: bytes | None, passphrase: str = "") -> None:
        self._find(folder)
        if key_text is not None:
            self.root_key, generation = read_key_file(key_text, self.id), json.loads(key_text)["generation"]
        else:
            newest = max((folder / "keys/root").iterdir(), key=lambda path: int([*path.name.split("."), 0][1]))
            text = newest.read_bytes()
            self.root_key, generation = open_root_record(text, self.id, passphrase), json.loads(text)["generation"]
        ending = f".{generation}.{derive(self.root_key, 'root-key-id', 16).hex()}" if generation else ""
        secrets = decode(self.unwrap(f"keys/store/{self.id.hex()}{ending}", 1, b""))
        self.k_index, self.k_log, self.k_ckpt = secrets["k_index"], secrets["k_log"], secrets["k_ckpt"]
        self.content = {
            kind: tuple(derive(secrets["tenant_secret"], f"{use}/{name}") for use in ("hash", "id", "enc"))
            for kind, name in ((CHUNK, "chunk"), (PAGE, "page"))
        }

    def _find(self, folder: Path) -> None:
        self.folder = folder
        text = self.read("format")
        fields = read_json(text, "cairn store")
        shape = '{{"cairn store": 1, "store": "{store}", "tenant": "{tenant}", "check": "{check}"}}\n'
        require(text == shape.format(**fields).encode(), "format record")
        self.id, self.tenant = bytes.fromhex(fields["store"]), bytes.fromhex(fields["tenant"])

    def model_keys(self, model: bytes, held: Fields) -> dict[tuple[int, int], bytes]:
        """Private halves of a model by component and generation."""
        keys = decode(self.unwrap(held["wrap"], 2, model))["keys"]
        return {(key["component"], key["generation"]): key["private"] for key in keys}

    def read(self, name: str) -> bytes:
        """Stored bytes of an object."""
        try:
            return (self.folder / name).read_bytes()
        except OSError:
            raise Damaged(f"{name} is missing") from None

    def read_named(self, ref: Fields, kind: str) -> bytes:
        """Section 8: stored bytes of an object that an entry names."""
        data = self.read(f"objects/{ref['name'][:16].hex()}/{ref['name'][16:].hex()}.{kind}")
        require(len(data) == ref["size"] and hash_of(data) == ref["hash"], f"{kind} has other bytes")
        return data

    def unwrap(self, name: str, purpose: int, model: bytes) -> bytes:
        """Section 6: what a wrap holds."""
        data = self.read(name)
        require(len(data) >= 84 and hash_of(data[:-32]) == data[-32:], "damaged wrap")
        require(data[:6] == b"CRNW\x01" + bytes((purpose,)), "wrap header")
        require(data[8:24] == derive(self.root_key, "root-key-id", 16), "wrap of another root key")
        extra = data[:24] + encode(["cairn/1/wrap", self.id, purpose, model])
        return open_gcm(self.root_key, data[24:36], data[36:-32], extra)

    def open(self, class_key: bytes, kind: int, data: bytes) -> bytes:
        """Section 7: plaintext of a sealed object."""
        require(len(data) >= 88 and data[:8] == b"CRNO\x01" + bytes((kind, 0, 0)), "header of a sealed object")
        both = derive(class_key, f"object/{kind}/{self.id.hex()}", 64, data[8:40])
        require(hmac.compare_digest(both[32:], data[40:72]), "key commitment")
        return open_gcm(both[:32], bytes(12), data[72:], data[:72])

    def open_hpke(self, model: bytes, key: tuple[int, int], private: bytes, purpose: str, sealed: bytes) -> bytes:
        """Section 13: what is sealed to the public half of a component's key of some generation."""
        suite = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_256_GCM)
        extra = encode(["cairn/1", purpose, self.tenant, model, *key])
        try:
            return suite.decrypt(sealed, X25519PrivateKey.from_private_bytes(private), info=extra)
        except (InvalidTag, ValueError):
            raise Damaged("HPKE authentication fails") from None
