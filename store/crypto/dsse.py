"""Signed envelopes after DSSE 1.0 (github.com/secure-systems-lab/dsse): a typed payload and Ed25519 signatures of it.

What is verified is what is used: a payload is decoded once, and read from nowhere else. The key id of a signature is
the signer's public key in hexadecimal digits, and a hint only: whoever verifies says whose signatures are looked for.
"""

import binascii
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass

from cairn.core.errors import BadInput
from cairn.core.ids import HASH_BYTES, ActorId
from cairn.core.limits import ATTESTATION_BYTES_MAX, SIGNATURES_MAX
from cairn.store.crypto.signing import Identity, verify_signature

IN_TOTO = "application/vnd.in-toto+json"
_ALTCHARS = bytes.maketrans(b"-_", b"+/")


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature, and what it says of its key."""

    keyid: str
    sig: bytes


@dataclass(frozen=True, slots=True)
class Envelope:
    """A payload of a type, and signatures, which are unverified."""

    payload_type: str
    payload: bytes
    signatures: tuple[Signature, ...]

    def signers(self, among: Iterable[ActorId]) -> frozenset[ActorId]:
        """Those of some actors whose signature it bears."""
        message = pae(self.payload_type, self.payload)
        return frozenset(
            actor for actor in among if any(verify_signature(actor, one.sig, message) for one in self.signatures)
        )

    def claimed(self) -> frozenset[ActorId]:
        """Actors that its key ids name and whose signature it bears: who they are is for the caller to know."""
        return self.signers({ActorId(key) for one in self.signatures if len(key := _unhex(one.keyid)) == HASH_BYTES})

    def encode(self) -> bytes:
        """JSON, in one spelling."""
        signatures = [{"keyid": one.keyid, "sig": b64encode(one.sig).decode()} for one in self.signatures]
        fields = {
            "payload": b64encode(self.payload).decode(),
            "payloadType": self.payload_type,
            "signatures": signatures,
        }
        return json.dumps(fields, separators=(",", ":")).encode()


def pae(payload_type: str, payload: bytes) -> bytes:
    """What is signed: the pre-authentication encoding."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def sign_envelope(payload_type: str, payload: bytes, identity: Identity) -> Envelope:
    """An envelope with one signature."""
    sig = identity.sign(pae(payload_type, payload))
    return Envelope(payload_type, payload, (Signature(identity.actor.hex(), sig),))


def parse_envelope(data: bytes, what: str) -> Envelope:
    """An envelope from its JSON; fields that DSSE does not know are ignored.

    Raises:
        BadInput: it is none, or over a limit.
    """
    try:
        if len(data) > ATTESTATION_BYTES_MAX:
            raise ValueError(f"it is longer than {ATTESTATION_BYTES_MAX} bytes")
        fields = json.loads(data.decode())
        if not isinstance(fields, dict) or not isinstance(fields.get("payloadType"), str):
            raise ValueError("it has no payloadType")
        kind, told = fields["payloadType"], fields.get("signatures")
        kind.encode()  # what is no text has no encoding to sign
        if not isinstance(told, list) or len(told) > SIGNATURES_MAX:
            raise ValueError(f"it has no signatures, or more than {SIGNATURES_MAX}")
        payload = _unbase64(fields.get("payload"), "payload")
        signatures = tuple(map(_signature, told))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{what} is no signed envelope: {error}", hint="'cairn attest export' writes one") from None
    return Envelope(kind, payload, signatures)


def _signature(fields: object) -> Signature:
    if not isinstance(fields, dict):
        raise ValueError("a signature is no object")
    keyid = fields.get("keyid")
    return Signature(keyid if isinstance(keyid, str) else "", _unbase64(fields.get("sig"), "sig"))


def _unbase64(text: object, name: str) -> bytes:
    """Standard and URL-safe base64 are one to DSSE."""
    if not isinstance(text, str):
        raise ValueError(f"its {name} is no text")
    try:
        return b64decode(text.encode("ascii").translate(_ALTCHARS), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise ValueError(f"its {name} is no base64") from None


def _unhex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""
