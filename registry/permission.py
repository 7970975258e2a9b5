"""What this user may do in a store, told before it is tried: each refusal names the right and who gives it."""

from cairn.core.errors import NotAllowed
from cairn.core.ids import ModelId, short
from cairn.registry.entries import Entry, Payload
from cairn.registry.fold_rights import NO_RIGHT, right_refused
from cairn.registry.opened import OpenStore
from cairn.registry.rights import WRITING, Role, writable
from cairn.registry.rootkeys import NEXT, is_in_force
from cairn.registry.state import State
from cairn.store.crypto.provider import RootKey
from cairn.store.crypto.signing import Identity

_OWNER = "use the identity of an owner: identity.key in the state folder of whoever created the store"


def check_membership(opened: OpenStore, state: State) -> None:
    """Raise unless the wrap that opened the store is what the log gives this user now.

    Raises:
        NotAllowed: the membership has ended, or was changed since.
    """
    if opened.member_wrap is None:
        return
    member = state.members.get(opened.identity.actor)
    if member is None or not member.role:
        raise NotAllowed(
            f"identity {short(opened.identity.actor)} is no member of {opened.backend.url} any more",
            hint="ask an owner to run: cairn members add IDENTITY ROLE",
        )
    if member.hash != opened.member_wrap:
        raise NotAllowed(
            f"what opened {opened.backend.url} is not what the log gives {short(opened.identity.actor)}",
            hint="repeat the command; if it stays so, ask an owner to run: cairn members role IDENTITY ROLE",
        )


def root_key_of(opened: OpenStore) -> RootKey:
    """The root key itself.

    Raises:
        NotAllowed: this user is no owner, or a service holds the key.
    """
    provider = opened.provider
    if not isinstance(provider, RootKey):
        raise NotAllowed("a service holds the root key and does not hand it out", hint="give access to that service")
    return provider


def check_root(opened: OpenStore, state: State) -> None:
    """Raise unless the root key at hand is the one in force: what is wrapped under another can never be opened.

    Raises:
        NotAllowed: it was rotated since, or this user is no owner.
    """
    provider = opened.provider
    if isinstance(provider, RootKey) and not is_in_force(provider, state):
        raise NotAllowed(
            f"the root key at hand is of generation {provider.generation}, and {state.root_generation} is in force"
            + ("; they are not the same" if provider.generation == state.root_generation else ""),
            hint=f"open the store with the new key file; an interrupted change left it beside the old, as ...{NEXT}...",
        )


def signer_of(opened: OpenStore, state: State) -> Identity:
    """The identity that signs this user's entries.

    Raises:
        NotAllowed: no entry of this user can count.
    """
    identity = opened.identity_among(state.owners)
    if identity is not None:
        return identity
    member = state.members.get(opened.identity.actor)
    if member is not None and member.role in WRITING:
        return opened.identity
    role = f" as {member.role}" if member is not None and member.role else ""
    who = short(opened.identity.actor)
    raise NotAllowed(
        f"identity {who} has no right to write here{role}; nothing was changed",
        hint=f"ask an owner: 'cairn members role {who} writer' lets you commit, 'collector' run gc; owners do the rest"
        if role
        else _OWNER,
    )


def check_may_write(opened: OpenStore, state: State, model: ModelId) -> None:
    """Raise unless this user's commits to a model can count.

    Raises:
        NotAllowed: they cannot; says which grant is missing.
    """
    identity = signer_of(opened, state)
    if identity.actor in state.owners:
        return
    member = state.members.get(identity.actor)
    if not writable(member, model):
        raise _missing(identity, member.role if member else "", model.hex())


def check_right(state: State, entry: Entry, payload: Payload) -> None:
    """Raise where the fold would refuse an entry for its actor's sake.

    Raises:
        NotAllowed: it would.
    """
    if entry.n == 0:
        return
    reason = right_refused(state, entry, payload)
    if reason is None:
        return
    hint = _OWNER
    if reason != NO_RIGHT:
        hint = "ask an owner to do it, or for another role or grant: cairn members, cairn grant"
    raise NotAllowed(f"the {entry.type} entry would be void: {reason}; nothing was changed", hint=hint)


def _missing(identity: Identity, role: str, model: str) -> NotAllowed:
    who = short(identity.actor)
    if role == Role.WRITER:
        return NotAllowed(
            f"{who} was not granted to write to model {model}; nothing was changed",
            hint=f"ask an owner to run: cairn grant MODEL {who} --write",
        )
    return NotAllowed(
        f"{who} is a {role} here, who commits nothing; nothing was changed",
        hint=f"ask an owner to run: cairn members role {who} writer, and cairn grant MODEL {who} --write",
    )
