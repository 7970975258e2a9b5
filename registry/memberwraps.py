"""Wraps of what members hold of a store: found by their identity alone, before the log can be read.

A member's wraps are called `keys/member/<fingerprint of its public identity>/<generation>`; the log says which counts.
"""

import re
from contextlib import suppress

from blake3 import blake3

from cairn.core.canonical import decode, encode
from cairn.core.errors import NotAllowed, ObjectExists, ObjectNotFound
from cairn.core.ids import StoreId
from cairn.registry.secrets import MemberSecrets
from cairn.store.backends.contract import Backend
from cairn.store.crypto.provider import WrapContext, WrapPurpose
from cairn.store.crypto.sealed_wrap import unwrap_as, wrap_for
from cairn.store.crypto.signing import Identity, PublicIdentity

FOLDER = "keys/member"
_GENERATION = re.compile(r"\d{6}", re.ASCII)


def wrap_name(member: PublicIdentity, generation: int) -> str:
    """Object name of one of a member's wraps."""
    return f"{FOLDER}/{member.fingerprint().hex()}/{generation:06d}"


def wraps_of(backend: Backend, member: PublicIdentity) -> dict[int, str]:
    """Names of a member's wraps that there are, by generation, ascending."""
    listed = [one.name for one in backend.list(f"{FOLDER}/{member.fingerprint().hex()}")]
    return {int(name[-6:]): name for name in listed if _GENERATION.fullmatch(name.rpartition("/")[2])}


def open_member_wrap(backend: Backend, store: StoreId, identity: Identity, name: str) -> tuple[MemberSecrets, bytes]:
    """What a wrap holds, and the hash of its stored bytes.

    Raises:
        NotAllowed: the membership has just ended.
        IntegrityError: it is damaged, or not for this identity.
    """
    what = f"wrap {name}"
    try:
        wrapped = backend.read(name)
    except ObjectNotFound:
        raise NotAllowed(f"{what} is gone: your membership was changed", hint="repeat the command") from None
    plain = unwrap_as(identity, wrapped, _context(store), what)
    return decode(plain, MemberSecrets, what), blake3(wrapped).digest()


def store_member_wrap(
    backend: Backend, store: StoreId, member: PublicIdentity, secrets: MemberSecrets, newest: int
) -> tuple[int, bytes]:
    """Store a member's wrap; returns its generation and the hash of its stored bytes.

    Args:
        newest: generation that the log gives the member.
    """
    wrapped = wrap_for(member, encode(secrets), _context(store))
    while True:
        newest = max([newest, *wraps_of(backend, member)]) + 1
        with suppress(ObjectExists):  # another owner gives this member a wrap at the same time
            backend.create(wrap_name(member, newest), [wrapped])
            return newest, blake3(wrapped).digest()


def _context(store: StoreId) -> WrapContext:
    return WrapContext(store, WrapPurpose.MEMBER_KEYS)
