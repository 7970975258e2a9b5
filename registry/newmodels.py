"""Making a model known in a store: its keys, wrapped for owners and for members who may read all models."""

from collections.abc import Callable

from cairn.core.ids import ActorId
from cairn.registry.entries import ModelCreate
from cairn.registry.modelkeys import ModelKeys, create_model
from cairn.registry.permission import check_root
from cairn.registry.registry import Registry
from cairn.registry.rights import ALL_MODELS, Member, readable
from cairn.registry.state import State
from cairn.store.crypto.signing import PublicIdentity


class _Taken(Exception):
    """Another writer was first."""


def add_model(registry: Registry, name: str, keys: ModelKeys, taken: Callable[[State], bool]) -> None:
    """Append the entry that makes a model, unless `taken` says that another writer has done so meanwhile.

    Raises:
        NotAllowed: only owners make models.
        ConflictError: the name is taken.
    """
    opened = registry.opened
    made: list[ModelCreate] = []
    readers: dict[PublicIdentity, set[int]] | None = None

    def build(state: State) -> ModelCreate:
        nonlocal readers
        if taken(state):
            raise _Taken
        check_root(opened, state)
        wanted = {public_of(actor, one): readable(one, ALL_MODELS) for actor, one in state.members.items()}
        wanted = {member: reads for member, reads in wanted.items() if reads}
        if wanted != readers:
            readers = wanted
            made.append(create_model(opened, name, keys, readers))
        return made[-1]

    try:
        registry.append(build)
        lost = made[:-1]
    except _Taken:
        lost = made
    # After any other failure the entry may yet turn out to be there, and then names what was made.
    for payload in lost:
        for wrap in (payload.wrap, *(given.wrap for given in payload.wraps)):
            opened.backend.delete(wrap)


def public_of(actor: bytes, member: Member) -> PublicIdentity:
    """The public identity of a member."""
    return PublicIdentity(ActorId(actor), member.agreement)
