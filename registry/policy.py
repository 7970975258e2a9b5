"""Settings of a store, which stand in its log."""

from cairn.registry.entries_audit import Policy
from cairn.registry.fold_policy import settings_of
from cairn.registry.registry import Registry


def set_policy(registry: Registry, name: str, value: str) -> bool:
    """Give a setting a value from here on; False if it has it already."""
    if settings_of(registry.refresh()).get(name) == value:
        return False
    registry.append(lambda state: Policy({name: value}))
    return True


def carry_policy(source: Registry, target: Registry) -> None:
    """Give a new store of the tenant the settings of another."""
    if source.state.policy and not target.state.policy:
        settings = dict(source.state.policy)
        target.append(lambda state: Policy(settings))
