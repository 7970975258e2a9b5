"""A collection plan as a file: JSON that people can read, bound to a store and to a position of its log."""

import json
from pathlib import Path
from typing import Any

import msgspec

from cairn.core.errors import BadInput, PlanVoid, StorageError
from cairn.core.ids import StoreId
from cairn.gc.plan import Plan
from cairn.registry.numbers import are_ranges, numbers_of, ranges
from cairn.registry.state import State, name_of_key

_KIND = "cairn-gc-plan/1"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    store: str
    log_length: int
    epoch: int
    drop: list[tuple[str, str]]
    condemn_packs: list[tuple[int, int]]
    repack_packs: list[tuple[int, int]]
    condemn_objects: list[str]
    bytes_freed: int
    bytes_copied: int


def write_plan(plan: Plan, store: StoreId, path: Path) -> None:
    """Write a plan; a file that exists is replaced.

    Raises:
        StorageError: it cannot be written.
    """
    data = json.dumps(plan_facts(plan, store), indent=1)
    try:
        path.write_text(data + "\n")
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from None


def plan_facts(plan: Plan, store: StoreId) -> dict[str, Any]:
    """What a plan says, as plain values."""
    file = _File(
        _KIND, store.hex(), plan.length, plan.epoch, [(m.hex(), c.hex()) for m, c in plan.drops],
        list(ranges(plan.dead)), list(ranges(plan.repacked)), [key.hex() for key in plan.objects],
        plan.bytes_freed, plan.bytes_copied,
    )  # fmt: skip
    facts: dict[str, Any] = msgspec.to_builtins(file)
    return facts


def read_plan(path: Path, store: StoreId, state: State) -> Plan:
    """Read a plan for this store.

    Raises:
        BadInput: it is no such file, another store's, or names packs that the store never had.
        PlanVoid: it is of another collection epoch.
    """
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
        objects = [bytes.fromhex(key) for key in file.condemn_objects]
        drops = [(bytes.fromhex(model), bytes.fromhex(checkpoint)) for model, checkpoint in file.drop]
        for key in objects:
            name_of_key(key)
        if not all(are_ranges(tuple(given), state.pack_count) for given in (file.condemn_packs, file.repack_packs)):
            raise ValueError("packs that are none")
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, ValueError, IndexError):
        raise BadInput(f"{path} is not a collection plan", hint="'cairn gc plan -o FILE' writes one") from None
    if file.kind != _KIND:
        raise BadInput(f"{path} is of kind {file.kind[:32]!r}, not {_KIND!r}", hint="make a new plan")
    if file.store != store.hex():
        raise BadInput(f"{path} is a plan for store {file.store[:32]}, not for {store.hex()}")
    if file.epoch != state.epoch:
        raise PlanVoid(f"{path} was made in another collection epoch; nothing was changed", hint="plan again")
    dead, repacked = list(numbers_of(file.condemn_packs)), list(numbers_of(file.repack_packs))
    return Plan(file.log_length, file.epoch, False, drops, dead, repacked, objects, file.bytes_freed, file.bytes_copied)
