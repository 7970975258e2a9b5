"""Negative cryptography: whatever is changed, moved or opened with another key is refused, each in its own way."""

import json
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from blake3 import blake3

from cairn.core.errors import CairnError, IntegrityError, NewerFormat, NotAllowed, WrongKey
from cairn.core.ids import ActorId, Digest, ModelId, StoreId, TenantId
from cairn.store.crypto import chunks, objects
from cairn.store.crypto.components import ComponentClass, ComponentKey, new_component_key
from cairn.store.crypto.keyfile import dump_key_file, load_key_file, open_root_key, seal_root_key
from cairn.store.crypto.objects import ObjectKind, open_object, seal_object
from cairn.store.crypto.provider import RootKey, WrapContext, WrapPurpose
from cairn.store.crypto.signing import Identity, verify_signature
from cairn.store.crypto.tenant import ContentType, TenantKeys
from tests.support.doubles import SeededEntropy

ENTROPY = SeededEntropy(1)
STORE, OTHER_STORE = StoreId(ENTROPY.token(16)), StoreId(ENTROPY.token(16))
TENANT, OTHER_TENANT = TenantId(ENTROPY.token(16)), TenantId(ENTROPY.token(16))
SECRET, CLASS_KEY = ENTROPY.token(32), ENTROPY.token(32)
KEYS, OTHER_KEYS = TenantKeys.from_secret(TENANT, SECRET), TenantKeys.from_secret(OTHER_TENANT, ENTROPY.token(32))
MODEL = ModelId(ENTROPY.token(16))
COMPONENT = new_component_key(TENANT, MODEL, ComponentClass.WEIGHTS, ENTROPY)
ROOT, OTHER_ROOT = RootKey(3, ENTROPY.token(32)), RootKey(3, ENTROPY.token(32))
WRAP = WrapContext(STORE, WrapPurpose.MODEL_KEYS, MODEL)
PLAIN = bytes(range(256)) * 3


def seal_chunk(data: bytes = PLAIN, kind: ContentType = ContentType.CHUNK, keys: TenantKeys = KEYS) -> bytes:
    target = memoryview(bytearray(len(data) + chunks.OVERHEAD_BYTES))
    chunks.seal_into(keys, kind, keys.of(kind).digest(data), 0, len(data), data, target, ENTROPY)
    return bytes(target)


def open_chunk(
    sealed: bytes, data: bytes = PLAIN, kind: ContentType = ContentType.CHUNK, keys: TenantKeys = KEYS
) -> bytes:
    plain = bytearray(max(0, len(sealed) - chunks.OVERHEAD_BYTES))
    header = chunks.parse_header(sealed, "it")
    chunks.open_into(keys, header, keys.of(kind).digest(data), memoryview(sealed), memoryview(plain), "it")
    return bytes(plain)


@pytest.fixture(scope="module")
def root_record() -> bytes:
    return seal_root_key(STORE, ROOT, "correct horse", ENTROPY)


Opener = Callable[[bytes], object]
FORMS: dict[str, tuple[bytes, Opener, int]] = {
    "chunk": (seal_chunk(), open_chunk, chunks.HEADER_BYTES),
    "object": (
        seal_object(CLASS_KEY, STORE, ObjectKind.BODY, PLAIN, ENTROPY),
        lambda data: open_object(CLASS_KEY, STORE, ObjectKind.BODY, data, "it"),
        objects.HEADER_BYTES,
    ),
    "root": (COMPONENT.seal_root(PLAIN, ENTROPY), lambda data: COMPONENT.open_root(data, "it"), 88),
    "wrap": (ROOT.wrap(PLAIN, WRAP, ENTROPY), lambda data: ROOT.unwrap(data, WRAP, "it"), 36),
    "key file": (dump_key_file(STORE, ROOT), lambda data: load_key_file(data, STORE, "it"), 1 << 20),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_was_sealed_opens(form: str) -> None:
    sealed, opener, _ = FORMS[form]
    assert opener(sealed) in (PLAIN, ROOT)


@pytest.mark.parametrize("form", FORMS)
def test_X07_each_flipped_bit_of_a_header_and_samples_beyond_are_refused(form: str) -> None:
    sealed, opener, header = FORMS[form]
    places = [*range(min(header, len(sealed))), *range(header, len(sealed), 13), *range(len(sealed) - 40, len(sealed))]
    for at in places:
        for bit in range(8):
            changed = bytearray(sealed)
            changed[at] ^= 1 << bit
            with pytest.raises(IntegrityError):
                opener(bytes(changed))


@pytest.mark.parametrize("form", FORMS)
def test_X07_what_is_too_short_or_too_long_is_refused(form: str) -> None:
    sealed, opener, _ = FORMS[form]
    for length in range(len(sealed) - 1):
        with pytest.raises(IntegrityError):
            opener(sealed[:length])
    with pytest.raises(IntegrityError):
        opener(sealed + b"\0")


# --- Chunks -----------------------------------------------------------------------------------


def test_X07_swapped_chunks_are_refused() -> None:
    first, second = b"a" * 500 + b"1", b"a" * 500 + b"2"
    of_first, of_second = seal_chunk(first), seal_chunk(second)
    for sealed, wanted in ((of_first, second), (of_second, first)):
        with pytest.raises(IntegrityError, match="another chunk"):
            open_chunk(sealed, wanted)
    # The right header before the other's ciphertext, with either nonce.
    for cut in (40, chunks.HEADER_BYTES):
        with pytest.raises(IntegrityError, match="authentication"):
            open_chunk(of_first[:cut] + of_second[cut:], first)


def test_a_page_is_no_chunk() -> None:
    page = seal_chunk(kind=ContentType.PAGE)
    assert open_chunk(page, kind=ContentType.PAGE) == PLAIN
    for wanted in ContentType:
        with pytest.raises(IntegrityError):
            open_chunk(page[:1] + bytes([1]) + page[2:], kind=wanted)
    with pytest.raises(IntegrityError):
        open_chunk(page)


def test_a_chunk_belongs_to_its_tenant_even_under_the_same_secret() -> None:
    sealed = seal_chunk()
    for keys in (OTHER_KEYS, TenantKeys.from_secret(OTHER_TENANT, SECRET)):
        with pytest.raises(IntegrityError):
            open_chunk(sealed, keys=keys)


def windows(data: bytes, length: int = 8) -> set[bytes]:
    return {data[at : at + length] for at in range(len(data) - length + 1)}


def test_X08_equal_plaintext_in_two_tenants_shares_no_id_no_key_no_byte_run() -> None:
    for kind in ContentType:
        mine, theirs = KEYS.of(kind), OTHER_KEYS.of(kind)
        first, second = mine.digest(PLAIN), theirs.digest(PLAIN)
        assert first != second
        assert mine.content_id(first) != theirs.content_id(second)
        assert mine.content_key(first) != theirs.content_key(second)
        # Nor does the other tenant's digest help with one's own keys.
        assert mine.content_id(first) != mine.content_id(second)
        sealed = seal_chunk(kind=kind), seal_chunk(kind=kind, keys=OTHER_KEYS)
        assert not windows(sealed[0][8:]) & windows(sealed[1][8:])


def test_the_types_of_one_tenant_share_no_key() -> None:
    chunk, page = KEYS.chunk, KEYS.page
    assert len({chunk.hash, chunk.id, chunk.enc, page.hash, page.id, page.enc, SECRET}) == 7
    digest = Digest(bytes(32))
    assert chunk.content_id(digest) != page.content_id(digest)
    assert chunk.content_id(digest) != chunk.content_key(digest)


def test_one_chunk_sealed_twice_differs_by_nonce_and_ciphertext_only() -> None:
    first, second = seal_chunk(), seal_chunk()
    assert first[:40] == second[:40]
    assert first[40:52] != second[40:52]
    assert not windows(first[52:]) & windows(second[52:])
    assert open_chunk(first) == open_chunk(second) == PLAIN


def test_X30_no_key_meets_two_nonces_except_for_equal_content(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[bytes, bytes]] = []
    real = chunks.AESGCM

    class Recording:
        def __init__(self, key: bytes) -> None:
            self._key, self._cipher = key, real(key)

        def encrypt_into(self, nonce: bytes, *rest: Any) -> int:
            used.append((self._key, nonce))
            return self._cipher.encrypt_into(nonce, *rest)

    monkeypatch.setattr(chunks, "AESGCM", Recording)
    for number in range(300):
        seal_chunk(number.to_bytes(2, "big"))
    seal_chunk(bytes(2))
    assert len({key for key, _ in used}) == 300
    assert len(set(used)) == 301


# --- Objects ----------------------------------------------------------------------------------


def test_an_object_opens_only_as_what_it_is_where_it_is() -> None:
    sealed = FORMS["object"][0]
    for kind in set(ObjectKind) - {ObjectKind.BODY}:
        with pytest.raises(IntegrityError):
            open_object(CLASS_KEY, STORE, kind, sealed, "it")
        relabelled = sealed[:5] + bytes([kind]) + sealed[6:]
        with pytest.raises(IntegrityError):
            open_object(CLASS_KEY, STORE, kind, relabelled, "it")
    with pytest.raises(IntegrityError, match="another key"):
        open_object(CLASS_KEY, OTHER_STORE, ObjectKind.BODY, sealed, "it")
    with pytest.raises(IntegrityError, match="another key"):
        open_object(bytes(32), STORE, ObjectKind.BODY, sealed, "it")


def test_X30_each_object_has_a_key_of_its_own() -> None:
    sealed = [seal_object(CLASS_KEY, STORE, ObjectKind.BODY, PLAIN, ENTROPY) for _ in range(50)]
    assert len({one[40:72] for one in sealed}) == 50
    assert not windows(sealed[0][8:]) & windows(sealed[1][8:])


# --- Component roots and values ---------------------------------------------------------------


IMPOSTORS = {
    "component": replace(COMPONENT, component=ComponentClass.FILES),
    "generation": replace(COMPONENT, generation=1),
    "model": replace(COMPONENT, model=ModelId(bytes(16))),
    "tenant": replace(COMPONENT, tenant=OTHER_TENANT),
    "pair": new_component_key(TENANT, MODEL, ComponentClass.WEIGHTS, ENTROPY),
}


@pytest.mark.parametrize("key", IMPOSTORS.values(), ids=IMPOSTORS)
def test_a_root_opens_only_for_its_model_component_and_generation(key: ComponentKey) -> None:
    sealed = FORMS["root"][0]
    relabelled = sealed[:5] + bytes([key.component]) + key.generation.to_bytes(2, "little") + sealed[8:]
    for data in (sealed, relabelled):
        with pytest.raises(IntegrityError):
            key.open_root(data, "it")
    with pytest.raises(IntegrityError):
        key.open(COMPONENT.seal(b"value", "name"), "name", "it")


def test_a_value_opens_only_for_its_purpose() -> None:
    sealed = COMPONENT.seal(b"value", "name")
    assert COMPONENT.open(sealed, "name", "it") == b"value"
    with pytest.raises(IntegrityError):
        COMPONENT.open(sealed, "message", "it")


def test_a_point_of_low_order_is_refused() -> None:
    with pytest.raises(IntegrityError):
        COMPONENT.open(bytes(32) + COMPONENT.seal(b"value", "name")[32:], "name", "it")


def test_sealing_needs_no_private_half_and_opening_says_that_it_does() -> None:
    writer = replace(COMPONENT, private=None)
    assert COMPONENT.open_root(writer.seal_root(PLAIN, ENTROPY), "it") == PLAIN
    with pytest.raises(NotAllowed, match="private weights key"):
        writer.open_root(FORMS["root"][0], "it")


# --- Wraps, key files, root records: a wrong key is not damage --------------------------------


def test_a_wrong_root_key_is_told_from_damage() -> None:
    wrapped = FORMS["wrap"][0]
    with pytest.raises(WrongKey):
        OTHER_ROOT.unwrap(wrapped, WRAP, "it")
    with pytest.raises(IntegrityError):
        OTHER_ROOT.unwrap(wrapped[:-1] + b"x", WRAP, "it")


@pytest.mark.parametrize(
    "context",
    [replace(WRAP, store=OTHER_STORE), replace(WRAP, model=b""), replace(WRAP, purpose=WrapPurpose.STORE_KEYS)],
    ids=["store", "model", "purpose"],
)
def test_a_wrap_opens_in_its_own_place_only(context: WrapContext) -> None:
    with pytest.raises(IntegrityError):
        ROOT.unwrap(FORMS["wrap"][0], context, "it")
    relabelled = bytearray(FORMS["wrap"][0][:-32])
    relabelled[5] = context.purpose
    with pytest.raises(IntegrityError, match="in its place"):
        ROOT.unwrap(bytes(relabelled) + blake3(relabelled).digest(), context, "it")


def test_the_key_file_of_another_store_is_a_wrong_key() -> None:
    with pytest.raises(WrongKey, match=STORE.hex()):
        load_key_file(dump_key_file(STORE, ROOT), OTHER_STORE, "it")


def test_a_wrong_passphrase_is_told_from_damage(root_record: bytes) -> None:
    assert open_root_key(root_record, STORE, "correct horse", "it") == ROOT
    with pytest.raises(WrongKey):
        open_root_key(root_record, STORE, "wrong horse", "it")
    with pytest.raises(IntegrityError, match="another store"):
        open_root_key(root_record, OTHER_STORE, "correct horse", "it")
    for at in range(len(root_record)):
        for bit in (1, 4, 0x20):
            changed = bytearray(root_record)
            changed[at] ^= bit
            with pytest.raises(IntegrityError):
                open_root_key(bytes(changed), STORE, "correct horse", "it")


def forged(text: bytes, **changes: Any) -> bytes:
    """A record with other fields, spelled as ours are, with the check value that goes with them: it is no secret."""
    fields = json.loads(text)
    del fields["check"]
    for name, value in changes.items():
        where = fields["argon2id"] if name in ("salt", "memory KiB", "passes", "lanes") else fields
        where[name] = value
    fields["check"] = blake3(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:32]
    return (json.dumps(fields, indent=1) + "\n").encode()


@pytest.mark.parametrize(
    "change",
    [
        {"memory KiB": (1 << 20) + 1}, {"memory KiB": 1 << 70}, {"passes": 17}, {"lanes": 65},
        {"memory KiB": -1}, {"memory KiB": 0}, {"passes": 0}, {"lanes": 0}, {"memory KiB": float("inf")},
        {"passes": "many"}, {"salt": "zz"}, {"salt": ""}, {"generation": 1 << 16}, {"generation": -1},
        {"argon2id": []}, {"sealed": None}, {"store": 7},
    ],
    ids=str,
)  # fmt: skip
def test_a_root_record_with_absurd_fields_is_refused_before_any_work(
    root_record: bytes, change: dict[str, Any]
) -> None:
    with pytest.raises(IntegrityError):
        open_root_key(forged(root_record, **change), STORE, "correct horse", "it")


@pytest.mark.parametrize("change", [{"root key": "ab"}, {"root key": 5}, {"generation": 1 << 16}, {"generation": None}])
def test_a_key_file_with_impossible_fields_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError):
        load_key_file(forged(dump_key_file(STORE, ROOT), **change), STORE, "it")


def test_a_newer_key_file_says_so() -> None:
    with pytest.raises(NewerFormat):
        load_key_file(forged(dump_key_file(STORE, ROOT), **{"cairn key file": 2}), STORE, "it")


# --- Signatures -------------------------------------------------------------------------------


def test_a_signature_is_of_one_actor_and_one_message() -> None:
    identity, other = Identity.generate(ENTROPY), Identity.generate(ENTROPY)
    signature = identity.sign(b"message")
    assert verify_signature(identity.actor, signature, b"message")
    for actor, signed, message in [
        (other.actor, signature, b"message"), (identity.actor, signature, b"messagE"),
        (identity.actor, signature[:-1], b"message"), (identity.actor, bytes(64), b"message"),
        (ActorId(b""), signature, b"message"), (ActorId(bytes(32)), signature, b"message"),
    ]:  # fmt: skip
        assert not verify_signature(actor, signed, message)


# --- Secrets stay secret ----------------------------------------------------------------------


def secrets() -> set[str]:
    held = [SECRET, CLASS_KEY, ROOT.key, OTHER_ROOT.key, COMPONENT.private or b"", KEYS.chunk.digest(PLAIN)]
    held += [
        key for keys in (KEYS, OTHER_KEYS) for kind in (keys.chunk, keys.page) for key in (kind.hash, kind.id, kind.enc)
    ]
    return {form for key in held for form in (key.hex(), repr(bytes(key))[2:-1], str(list(key))[1:-1])}


def test_no_repr_shows_a_secret() -> None:
    digest = KEYS.chunk.digest(PLAIN)
    identity = Identity(SECRET)
    for holder in (KEYS, KEYS.chunk, ROOT, COMPONENT, digest, [digest], identity):
        for text in (repr(holder), str(holder), f"{holder}"):
            assert not any(secret in text for secret in secrets()), text


def test_no_error_shows_a_secret(root_record: bytes) -> None:
    seen = []
    attempts: list[Callable[[], object]] = [
        lambda: open_chunk(seal_chunk()[:-1] + b"x"),
        lambda: open_object(bytes(32), STORE, ObjectKind.BODY, FORMS["object"][0], "it"),
        lambda: COMPONENT.open_root(FORMS["root"][0][:-1] + b"x", "it"),
        lambda: OTHER_ROOT.unwrap(FORMS["wrap"][0], WRAP, "it"),
        lambda: load_key_file(dump_key_file(STORE, ROOT)[:-9], STORE, "it"),
        lambda: load_key_file(dump_key_file(STORE, ROOT), OTHER_STORE, "it"),
        lambda: open_root_key(root_record, STORE, "wrong horse", "it"),
    ]
    for attempt in attempts:
        with pytest.raises(CairnError) as caught:
            attempt()
        # What a traceback prints, chained errors included.
        seen.append("".join(traceback.format_exception_only(caught.value)) + repr(caught.value))
        seen.append(repr(caught.value.__cause__) + repr(caught.value.__context__))
    assert not any(secret in text for text in seen for secret in secrets() | {"wrong horse"})
