"""The fold of settings and of recorded reads. Pure."""

from enum import StrEnum

from cairn.core.canonical import decode
from cairn.core.errors import IntegrityError
from cairn.core.limits import READS_PER_ENTRY
from cairn.registry.entries import Entry
from cairn.registry.entries_audit import Policy, Reads
from cairn.registry.state import State

AUDIT_READS = "audit_reads"
DELETE_APPROVAL = "delete_approval"
_SIGNATURE_BYTES = 64


class AuditReads(StrEnum):
    """What becomes of the record of a read.

    `required`: a read that cannot be recorded does not happen. `best_effort`: it happens all the same, as on a
    read-only mount. `off`: nothing is left of it once it has ended.
    """

    REQUIRED = "required"
    BEST_EFFORT = "best_effort"
    OFF = "off"


class DeleteApproval(StrEnum):
    """Whether another owner has to approve a deletion.

    `descendants`: of what checkpoints that stay were made from.
    """

    OFF = "off"
    DESCENDANTS = "descendants"


def audit_reads(state: State) -> AuditReads:
    """The setting in force."""
    return AuditReads(state.policy.get(AUDIT_READS, AuditReads.BEST_EFFORT))


def delete_approval(state: State) -> DeleteApproval:
    """The setting in force."""
    return DeleteApproval(state.policy.get(DELETE_APPROVAL, DeleteApproval.OFF))


def settings_of(state: State) -> dict[str, str]:
    """Each setting that this version knows, as it is in force."""
    return {AUDIT_READS: audit_reads(state).value, DELETE_APPROVAL: delete_approval(state).value}


def policy(state: State, entry: Entry, payload: Policy) -> str | None:
    """Apply settings; of names that are unknown, too, the newest value is kept."""
    if not payload.settings:
        return "it sets nothing"
    for name, values in ((AUDIT_READS, AuditReads), (DELETE_APPROVAL, DeleteApproval)):
        if name in payload.settings and payload.settings[name] not in list(values):
            return f"{name} has no such value"
    state.policy.update(payload.settings)
    return None


def reads(state: State, entry: Entry, payload: Reads) -> str | None:
    """Check the form. What readers signed is compared by whoever tells of it, and changes nothing here."""
    if not 0 < len(payload.reads) <= READS_PER_ENTRY:
        return "it tells of no read, or of too many"
    for one in payload.reads:
        try:
            signature = decode(one, tuple[bytes, bytes], "a read")[1]
        except IntegrityError:
            return "a read is not of the form of one"
        if len(signature) != _SIGNATURE_BYTES:
            return "a read has no signature"
    return None
