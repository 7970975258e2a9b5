"""What owners do about members: roles and grants.

A right to read is a wrap of keys, a right to write what the fold admits. Whoever loses a right to read keeps what was
given; so the keys concerned are rotated at once (`rotation.py`).
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from cairn.core.errors import CairnError, NotFoundError, RefusedError, UsageError
from cairn.core.ids import HASH_BYTES, ActorId, ModelId, short
from cairn.registry.entries import Payload
from cairn.registry.entries_rights import Given, GrantSet, MemberSet
from cairn.registry.memberwraps import store_member_wrap, wraps_of
from cairn.registry.modelkeys import give_model_keys
from cairn.registry.newmodels import public_of
from cairn.registry.opened import OpenStore
from cairn.registry.permission import check_root, root_key_of
from cairn.registry.registry import Registry
from cairn.registry.rights import ALL_MODELS, GRANTABLE, Grant, Member, Role, readable
from cairn.registry.secrets import HeldRoot, MemberSecrets
from cairn.registry.state import State
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.provider import RootKey
from cairn.store.crypto.signing import PublicIdentity


def secrets_of_role(opened: OpenStore, role: Role, root: RootKey | None = None) -> MemberSecrets:
    """What a member of some role is given of the store's keys.

    Args:
        root: for owners, the root key if it is not that of `opened`.

    Raises:
        NotAllowed: the root key cannot be given away, or is not at hand.
    """
    held = opened.secrets
    if role is Role.OWNER:
        root = root or root_key_of(opened)
        return MemberSecrets(held.k_log, root=HeldRoot(root.generation, root.key))
    if role is Role.AUDITOR:
        return MemberSecrets(held.k_log)
    if role is Role.COLLECTOR:
        return MemberSecrets(held.k_log, held.k_index)
    return MemberSecrets(held.k_log, held.k_index, held.k_ckpt, opened.keys.parts())


def set_role(registry: Registry, identity: PublicIdentity, role: Role) -> None:
    """Make somebody a member, or change a member's role; what a new role does not admit is lost.

    Raises:
        NotAllowed: this user is no owner.
    """
    opened = registry.opened
    made: list[int] = []

    def build(state: State) -> MemberSet:
        check_root(opened, state)
        secrets = secrets_of_role(opened, role)
        known = state.members.get(identity.actor)
        generation = max([known.generation if known else 0, *wraps_of(opened.backend, identity)]) + 1
        made.append(generation)
        hash_ = store_member_wrap(opened.backend, opened.store, identity, secrets, generation)
        return MemberSet(identity.actor, role, identity.agreement, generation, hash_)

    check_owner(registry)
    stale = _wraps_given_to(registry.state, identity.actor)
    registry.append(build)
    for generation, name in wraps_of(opened.backend, identity).items():
        if generation < made[-1]:
            opened.backend.delete(name)
    delete_unnamed(registry, stale)


def remove_member(registry: Registry, actor: ActorId) -> None:
    """End a membership; the keys that it came with are then exposed until their rotation.

    Raises:
        NotAllowed: this user is no owner.
    """
    check_owner(registry)
    state = registry.state
    member, stale = state.members.get(actor), _wraps_given_to(state, actor)
    registry.append(lambda state: MemberSet(actor, ""))
    if member is not None and member.agreement:
        for name in wraps_of(registry.opened.backend, public_of(actor, member)).values():
            registry.opened.backend.delete(name)
    delete_unnamed(registry, stale)


def grant(
    registry: Registry, actor: ActorId, model: ModelId | None, reads: Collection[ComponentClass], write: bool
) -> None:
    """Say what a member may do with a model, or with all models; takes the place of what was granted for it before.

    Raises:
        RefusedError: the member's role does not go with it.
        NotAllowed: this user is no owner.
    """
    key, classes = model or ALL_MODELS, tuple(sorted(int(component) for component in reads))
    made = _Made(registry)

    def build(state: State) -> GrantSet:
        member = _grantable(state, actor, write)
        grants = {**member.grants, key: Grant(classes, write)}
        after = msgspec.structs.replace(member, grants=grants)
        models = [key] if key else list(state.kept_models())
        new = [one for one in models if readable(after, one) - readable(member, one)]
        return GrantSet(actor, key, classes, write, tuple(made.give(actor, after, one) for one in new))

    made.append(build)


def revoke(registry: Registry, actor: ActorId, model: ModelId | None) -> None:
    """Take back what was granted for a model, or for all models at once.

    Raises:
        RefusedError: the member holds it through a grant of all models.
        NotFoundError: nothing was granted.
    """
    check_owner(registry)
    stale = _wraps_given_to(registry.state, actor)

    def build(state: State) -> GrantSet:
        member = state.members.get(actor)
        key = model or ALL_MODELS
        if member is None or key not in member.grants:
            if model and member and ALL_MODELS in member.grants:
                raise RefusedError(
                    f"{short(actor)} was granted all models at once", hint="take that back with --all, then grant anew"
                )
            raise NotFoundError(f"nothing of that was granted to {short(actor)}", hint="'cairn members' lists grants")
        return GrantSet(actor, key, (), False)

    registry.append(build)
    delete_unnamed(registry, stale)


def find_actor(registry: Registry, text: str) -> ActorId:
    """An actor by its whole id, the line of its identity, or as `find_member`, former members included.

    Raises:
        NotFoundError, UsageError: none, or several.
    """
    if len(text) == 2 * HASH_BYTES and ":" not in text:
        try:
            return ActorId(bytes.fromhex(text))
        except ValueError:
            raise UsageError(f"{text!r} is no actor's id", hint="64 hexadecimal digits") from None
    return _found(text, {*registry.state.owners, *registry.state.members, *registry.state.people})


def find_member(registry: Registry, text: str) -> ActorId:
    """The member that a line of an identity, or the first digits of an actor's id, means.

    Raises:
        NotFoundError, UsageError: none, or several.
    """
    state = registry.state
    return _found(text, {*state.owners, *(actor for actor, member in state.members.items() if member.role)})


def _found(text: str, everybody: Collection[bytes]) -> ActorId:
    digits = text.lower()
    if ":" in text:
        digits = PublicIdentity.parse(text).actor.hex()
    found = [actor for actor in everybody if actor.hex().startswith(digits)]
    if len(digits) < 4 or len(found) > 1:
        raise UsageError(f"{text[:80]!r} does not say who is meant", hint="write more digits of the actor's id")
    if not found:
        raise NotFoundError(f"no member {text[:80]!r}", hint="'cairn members' lists them")
    return ActorId(found[0])


def _grantable(state: State, actor: bytes, write: bool) -> Member:
    member = state.members.get(actor)
    role = "an owner" if actor in state.owners else f"a {member.role}" if member and member.role else "no member"
    if actor in state.owners or member is None or member.role not in GRANTABLE:
        raise RefusedError(
            f"{short(actor)} is {role}: grants are for readers and writers",
            hint=f"cairn members role {short(actor)} writer",
        )
    if write and member.role != Role.WRITER:
        raise RefusedError(f"{short(actor)} is {role}", hint=f"cairn members role {short(actor)} writer")
    return member


def check_owner(registry: Registry) -> None:
    """Look at the newest state, and raise unless this user may change rights in it.

    Raises:
        NotAllowed, NewerFormat, IntegrityError: see `check_root`, `Registry.check_writable`.
    """
    registry.refresh()
    registry.check_writable()
    check_root(registry.opened, registry.state)


def _wraps_given_to(state: State, actor: bytes) -> list[str]:
    """Wraps of models' keys that a member has."""
    return [model.readers[actor] for model in state.kept_models().values() if actor in model.readers]


def named_wraps(state: State) -> set[str]:
    """Names of all wraps of models' keys that count."""
    return {wrap for model in state.kept_models().values() for wrap in (model.wrap, *model.readers.values())}


def delete_unnamed(registry: Registry, names: Collection[str]) -> None:
    """Remove wraps that the log names no longer, once the entry that replaced them is known to be there."""
    named = named_wraps(registry.state)
    for name in names:
        if name not in named:
            # What stays of it opens only what its holder had; the log says that it is of no use.
            with suppress(CairnError):
                registry.opened.backend.delete(name)


@dataclass(slots=True)
class _Made:
    """Wraps that an entry is to name; those that it does not name in the end are removed when it is there."""

    registry: Registry
    names: list[str] = field(default_factory=list)

    def give(self, actor: bytes, member: Member, model: bytes) -> Given:
        """Make a wrap for a member of what it may read of a model."""
        keys = self.registry.model_keys(ModelId(model))
        given = give_model_keys(self.registry.opened, keys, public_of(actor, member), readable(member, model))
        self.names.append(given.wrap)
        return Given(model, given.wrap)

    def append(self, build: Callable[[State], Payload]) -> None:
        """Append the entry."""
        check_owner(self.registry)
        before = [wrap for model in self.registry.state.kept_models().values() for wrap in model.readers.values()]
        self.registry.append(build)
        delete_unnamed(self.registry, [*self.names, *before])
