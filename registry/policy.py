"""Settings of a store, which stand in its log."""

from cairn.registry.entries_audit import Policy
from cairn.registry.fold_policy import AUDIT_READS, AuditReads, audit_reads
from cairn.registry.registry import Registry


def set_audit_reads(registry: Registry, value: AuditReads) -> bool:
    """Say what becomes of the record of reads from here on; False if it is so already."""
    if audit_reads(registry.refresh()) is value:
        return False
    registry.append(lambda state: Policy({AUDIT_READS: value.value}))
    return True


def carry_policy(source: Registry, target: Registry) -> None:
    """Give a new store of the tenant the settings of another."""
    if source.state.policy and not target.state.policy:
        settings = dict(source.state.policy)
        target.append(lambda state: Policy(settings))
