"""Wraps for members: keys that are sealed to one person, so that no server has to give them out.

0   4  magic "CRNM"
4   1  format version (1)
5   1  purpose
6   2  zero
8   n  HPKE to the member's X25519 key (encapsulated key, ciphertext, tag); info = the context
-32 32 BLAKE3 of all before (tells damage without any key)
"""

from blake3 import blake3

from cairn.core.canonical import encode
from cairn.core.errors import IntegrityError
from cairn.core.ids import ActorId
from cairn.store.crypto.provider import WrapContext
from cairn.store.crypto.signing import Identity, PublicIdentity

MAGIC = b"CRNM"
VERSION = 1
_HEADER_BYTES = 8
_CHECK_BYTES = 32
# Encapsulated key and tag.
_HPKE_BYTES = 48


def wrap_for(member: PublicIdentity, plaintext: bytes, context: WrapContext) -> bytes:
    """Seal keys to a member."""
    head = MAGIC + bytes((VERSION, context.purpose, 0, 0))
    sealed = head + member.seal(plaintext, head + _info(member.actor, context))
    return sealed + blake3(sealed).digest()


def unwrap_as(identity: Identity, wrapped: bytes, context: WrapContext, what: str) -> bytes:
    """Open a wrap that was made for this identity and context.

    Raises:
        IntegrityError: it is damaged, somebody else's, or belongs to another context.
    """
    head = check_wrap(wrapped, context, what)
    sealed = wrapped[_HEADER_BYTES:-_CHECK_BYTES]
    return identity.open(sealed, head + _info(identity.actor, context), what)


def check_wrap(wrapped: bytes, context: WrapContext, what: str) -> bytes:
    """Raise unless a wrap is undamaged, which can be told without a key; returns its header."""
    head, body = wrapped[:_HEADER_BYTES], wrapped[:-_CHECK_BYTES]
    if (
        len(wrapped) < _HEADER_BYTES + _HPKE_BYTES + _CHECK_BYTES
        or blake3(body).digest() != wrapped[-_CHECK_BYTES:]
        or head != MAGIC + bytes((VERSION, context.purpose, 0, 0))
    ):
        raise IntegrityError(
            f"{what} is damaged", hint="ask an owner to make it anew: cairn members role IDENTITY ROLE"
        )
    return head


def _info(actor: ActorId, context: WrapContext) -> bytes:
    return encode(["cairn/1/member-wrap", context.store, int(context.purpose), context.model, actor])
