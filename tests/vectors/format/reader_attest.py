"""Signed statements: the `attest` entry of section 10, and what it holds. Imports nothing of Cairn."""

import base64
import json
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.vectors.format.reader import Fields, require

if TYPE_CHECKING:
    from tests.vectors.format.reader_log import Log

_SEALED_MAX, _PER_ACTOR_MAX = 65536, 64


def attest(log: "Log", body: Fields, n: int) -> str | None:
    held = log.models.get(body["model"], {"checkpoints": {}})["checkpoints"].get(body["checkpoint"])
    if held is None:
        return "its checkpoint does not exist"
    if len(body["tag"]) not in (0, 16) or len(body["signer"]) != 32 or not 1 <= len(body["envelope"]) <= _SEALED_MAX:
        return "a length is wrong"
    place = log.actor, body["signer"], body["tag"]
    others = {key: at for key, at in held.get("attested", {}).items() if key != place}
    if sum(key[0] == log.actor for key in others) >= _PER_ACTOR_MAX:
        return "its actor has written too many"
    held["attested"] = {**others, place: (n, body["signed_at"])}
    return None


def read_statement(envelope: bytes, signer: bytes) -> Fields:
    """The statement in an opened envelope, which the signer must have signed."""
    fields = json.loads(envelope)
    kind, payload = fields["payloadType"].encode(), base64.b64decode(fields["payload"])
    signed = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    try:
        key = Ed25519PublicKey.from_public_bytes(signer)
        key.verify(base64.b64decode(fields["signatures"][0]["sig"]), signed)
    except InvalidSignature:
        require(False, "signature of a statement")
    require(kind == b"application/vnd.in-toto+json", "type of a statement")
    return dict(json.loads(payload))


RULES = {"attest": attest}
