"""How ranks begin: the coordinator draws the key that seals this job's fragments and tells it to all."""

import msgspec

from cairn.core.canonical import decode, encode
from cairn.core.errors import UsageError
from cairn.registry.opened import OpenStore
from cairn.training.ranks import COORDINATOR, Ranks


class _Opening(msgspec.Struct, frozen=True):
    attempt_key: bytes
    store: bytes

    def __repr__(self) -> str:
        return "_Opening(<secret>)"


def meet(ranks: Ranks, opened: OpenStore, seconds: float) -> bytes:
    """The key of this job's fragments (32 bytes), the same on all ranks.

    Raises:
        UsageError: this rank has opened another store than the coordinator.
    """
    if ranks.coordinates:
        key = opened.entropy.token(32)
        ranks.tell("open", "key", encode(_Opening(key, opened.store)))
        return key
    told = ranks.wait("open", "key", [COORDINATOR], seconds)[COORDINATOR]
    opening = decode(told, _Opening, "the coordinator's opening")
    if opening.store != opened.store:
        raise UsageError("the ranks have opened different stores", hint="give all ranks the same store")
    return opening.attempt_key
