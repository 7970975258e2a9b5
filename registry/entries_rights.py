"""Payloads of entries that are about rights and keys; `fold_rights.py` has their rules.

The log names wraps and never holds one, so that a wrap can be destroyed.
"""

from typing import NamedTuple

import msgspec


class ComponentPublic(msgspec.Struct, frozen=True):
    """Public half of a component key."""

    component: int
    generation: int
    public: bytes


class Given(NamedTuple):
    """Object name of a wrap, and to whom (an actor) or of what (a model) it is."""

    whose: bytes
    wrap: str


class MemberSet(msgspec.Struct, frozen=True):
    """Makes somebody a member, changes a member's role, or ends a membership.

    Args:
        role: one of `rights.Role`; empty to end the membership.
        agreement: public half of the member's X25519 key.
        generation: of the member's wrap, higher than every one before.
        hash: BLAKE3 of the wrap's stored bytes.
    """

    member: bytes
    role: str
    agreement: bytes = b""
    generation: int = 0
    hash: bytes = b""


class PersonSet(msgspec.Struct, frozen=True, omit_defaults=True):
    """Commits to who an actor is, without telling it; without a commitment, what was recorded is erased.

    Args:
        member: the actor, whether a member or not.
        commitment: BLAKE3 of the record, which is salted.
        name: random; of the record's object and that of its key.
    """

    member: bytes
    commitment: bytes = b""
    name: bytes = b""


class GrantSet(msgspec.Struct, frozen=True):
    """Says what a member may do with a model from here on; without verbs it takes back what was granted.

    Args:
        model: empty for all models, those to come included.
        reads: component classes, ascending; `meta` comes with any of them.
        wraps: the private halves for it, for each model that is new to the member.
    """

    member: bytes
    model: bytes
    reads: tuple[int, ...]
    write: bool
    wraps: tuple[Given, ...] = ()


class KeyRotate(msgspec.Struct, frozen=True):
    """New generations of a model's component keys: what is committed from here on is sealed to them.

    Args:
        keys: each of a generation above those before it of its component.
        wrap: of the private halves of all generations; takes the place of the one before.
        wraps: new ones for exactly those members who may read something of the model.
    """

    model: bytes
    keys: tuple[ComponentPublic, ...]
    wrap: str
    wraps: tuple[Given, ...] = ()


class RootRotate(msgspec.Struct, frozen=True):
    """A new root key wraps everything that the one before has wrapped; nothing is derived anew.

    Args:
        generation: one more than that of the root key before.
        models: the new wrap of every model whose keys exist.
        members: new wraps of exactly those members who are owners, each of the next generation.
    """

    generation: int
    models: tuple[Given, ...]
    members: tuple[MemberSet, ...] = ()
