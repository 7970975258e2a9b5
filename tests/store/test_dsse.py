"""Envelopes are those of DSSE 1.0: its test vector, its parsing rules, and what it demands of verifiers."""

import json
from base64 import b64decode, urlsafe_b64encode

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from cairn.core.errors import BadInput
from cairn.core.limits import ATTESTATION_BYTES_MAX, SIGNATURES_MAX
from cairn.store.crypto.dsse import Envelope, pae, parse_envelope, sign_envelope
from tests.support.signing import ALICE, BOB, MALLORY

# From the protocol's own page: payload, type, key (P-256) and signature (r and s).
TYPE, BODY = "http://example.com/HelloWorld", b"hello world"
X = 46950820868899156662930047687818585632848591499744589407958293238635476079160
Y = 5640078356564379163099075877009565129882514886557779369047442380624545832820
VECTOR = {
    "payload": "aGVsbG8gd29ybGQ=",
    "payloadType": TYPE,
    "signatures": [{"sig": "A3JqsQGtVsJ2O2xqrI5IcnXip5GToJ3F+FnZ+O88SjtR6rDAajabZKciJTfUiHqJPcIAriEGAHTVeCUjW2JIZA=="}],
}


def parsed(**changes: object) -> Envelope:
    """A good envelope with some fields changed; None takes one away."""
    fields = json.loads(sign_envelope("t", b"payload", ALICE).encode()) | changes
    return parse_envelope(json.dumps({k: v for k, v in fields.items() if v is not None}).encode(), "it")


def test_the_vector_of_the_protocol() -> None:
    assert pae(TYPE, BODY) == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    envelope = parse_envelope(json.dumps(VECTOR).encode(), "vector")
    assert (envelope.payload_type, envelope.payload, envelope.signatures[0].keyid) == (TYPE, BODY, "")
    sig = envelope.signatures[0].sig
    der = encode_dss_signature(int.from_bytes(sig[:32]), int.from_bytes(sig[32:]))
    key = ec.EllipticCurvePublicNumbers(X, Y, ec.SECP256R1()).public_key()
    key.verify(der, pae(envelope.payload_type, envelope.payload), ec.ECDSA(SHA256()))


def test_lengths_count_bytes() -> None:
    assert pae("é", b"") == b"DSSEv1 2 \xc3\xa9 0 "


def test_who_has_signed_is_told_of_those_asked_for() -> None:
    envelope = sign_envelope("t", b"payload", ALICE)
    both = Envelope("t", b"payload", (*envelope.signatures, *sign_envelope("t", b"payload", BOB).signatures))
    assert both.signers([ALICE.actor, BOB.actor, MALLORY.actor]) == {ALICE.actor, BOB.actor} == both.claimed()
    assert parse_envelope(both.encode(), "it") == both


def test_a_key_id_decides_nothing() -> None:
    (mine,) = sign_envelope("t", b"payload", MALLORY).signatures
    lying = parsed(signatures=[{"keyid": ALICE.actor.hex(), "sig": urlsafe_b64encode(mine.sig).decode()}])
    assert lying.signers([ALICE.actor]) == frozenset() == lying.claimed()
    assert lying.signers([MALLORY.actor]) == {MALLORY.actor}
    unnamed = parsed(signatures=[{"sig": urlsafe_b64encode(mine.sig).decode()}])
    assert unnamed.signers([MALLORY.actor]) == {MALLORY.actor} and unnamed.claimed() == frozenset()


@pytest.mark.parametrize("changes", [{"payloadType": "u"}, {"payload": "cGF5bG9hZQ=="}])
def test_type_and_payload_are_signed(changes: dict[str, object]) -> None:
    assert parsed().signers([ALICE.actor]) == {ALICE.actor}
    assert parsed(**changes).signers([ALICE.actor]) == frozenset()


def test_both_kinds_of_base64_and_unknown_fields_are_taken() -> None:
    payload = bytes(range(248, 256)) * 2
    text = urlsafe_b64encode(payload).decode()
    assert "-" in text and "_" in text
    assert parsed(payload=text, extra=[1]).payload == payload == b64decode(text.translate({45: 43, 95: 47}))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"{", b"\xff", b"[" * 100_000,
        b'{"payload":"","payloadType":"t"}', b'{"payload":"","signatures":[]}', b'{"payloadType":"t","signatures":[]}',
        b'{"payload":1,"payloadType":"t","signatures":[]}', b'{"payload":"","payloadType":1,"signatures":[]}',
        b'{"payload":"","payloadType":"t","signatures":{}}', b'{"payload":"","payloadType":"t","signatures":[1]}',
        b'{"payload":"a","payloadType":"t","signatures":[]}', b'{"payload":"!!!!","payloadType":"t","signatures":[]}',
        b'{"payload":"","payloadType":"t","signatures":[{}]}',
        '{"payload":"é","payloadType":"t","signatures":[]}'.encode(),
        b'{"payload":"","payloadType":"\\ud800","signatures":[]}',
        b'{"payload":"","payloadType":"t","signatures":[' + b'{"sig":""},' * SIGNATURES_MAX + b'{"sig":""}]}',
        b" " * (ATTESTATION_BYTES_MAX + 1),
    ],
)  # fmt: skip
def test_what_is_no_envelope_is_refused(data: bytes) -> None:
    with pytest.raises(BadInput, match="it is no signed envelope"):
        parse_envelope(data, "it")
