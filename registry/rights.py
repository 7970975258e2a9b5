"""What members are: roles, grants, and what follows from them. Pure.

An **owner** may do everything, and holds the root key. A **writer** writes to the models that were granted, and reads
of them what was granted. A **reader** reads what was granted. A **collector** runs collections without a content key.
An **auditor** checks the log and reads no name. A trainer that is to write without reading is a writer whose
grant says nothing of reading.
"""

from enum import StrEnum

import msgspec

META = 0


class Role(StrEnum):
    """What a member is in a store."""

    OWNER = "owner"
    WRITER = "writer"
    READER = "reader"
    COLLECTOR = "collector"
    AUDITOR = "auditor"


ROLES = frozenset(map(str, Role))
# Roles that grants mean something to.
GRANTABLE = (Role.WRITER, Role.READER)
# Roles whose entries count at all.
WRITING = (Role.OWNER, Role.WRITER, Role.COLLECTOR)
ALL_MODELS = b""


class Grant(msgspec.Struct, frozen=True):
    """Component classes that a member may read, and whether it may write."""

    reads: tuple[int, ...]
    write: bool


class Member(msgspec.Struct):
    """Somebody who was given a right; `role` is empty for a former member.

    Args:
        agreement: public half of its X25519 key.
        generation, hash: of its wrap.
        n: the entry that last changed its role.
        grants: by model.
    """

    role: str
    agreement: bytes
    generation: int
    hash: bytes
    n: int
    grants: dict[bytes, Grant] = {}


def readable(member: Member | None, model: bytes) -> set[int]:
    """Component classes of a model whose private halves a member is to have; owners need none of their own."""
    if member is None or member.role not in GRANTABLE:
        return set()
    grants = [member.grants[key] for key in (ALL_MODELS, model) if key in member.grants]
    found = {component for grant in grants for component in grant.reads}
    return found | {META} if found else found


def writable(member: Member | None, model: bytes) -> bool:
    """Whether a member may write to a model."""
    if member is None or member.role != Role.WRITER:
        return False
    return any(member.grants[key].write for key in (ALL_MODELS, model) if key in member.grants)
