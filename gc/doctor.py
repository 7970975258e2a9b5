"""What state a store is in, and what to do about it, in plain sentences. Reads the log, listings, and little else."""

import os
from collections.abc import Iterator

from cairn.core.errors import CairnError, NotAllowed
from cairn.core.process import ProcessMark, is_known_dead, this_machine
from cairn.gc.doctor_machine import on_this_machine, store_folder
from cairn.gc.drops import due_to_drop
from cairn.gc.due import due_to_shred, to_destroy
from cairn.gc.observe import SeenSession, left_over, list_objects, list_pins, list_sessions
from cairn.gc.remark import ACT, FINE, NOTE, Remark, several, size, span
from cairn.gc.roots import live_checkpoints
from cairn.gc.silence import Silence
from cairn.registry.reads import ENDED, FOLDER
from cairn.registry.registry import Registry
from cairn.registry.state import State

_NS = 1_000_000_000
_VERIFY_DAYS = 30
_DAY_SECONDS = 86400


def examine(registry: Registry) -> list[Remark]:
    """Everything that a doctor says of a store that opens."""
    state = registry.refresh().copy()
    opened = registry.opened
    silence = Silence.of(opened, state)
    sessions = list_sessions(opened, silence)
    silence.keep()
    return [
        Remark("store", FINE, _about(registry, state)),
        _log(state),
        _writable(registry),
        *on_this_machine(registry),
        *_sessions(registry, sessions),
        *_pins(registry, silence),
        *_condemned(state, sessions),
        _leftovers(registry, state, sessions),
        *_deleted(registry),
        *_held(state),
        *_given_up(state),
        _verified(registry, state),
    ]


def _about(registry: Registry, state: State) -> str:
    count = sum(len(model.checkpoints) for model in state.models.values())
    return (
        f"{registry.opened.backend.url} is reachable: {several(count, 'checkpoint')} of "
        f"{several(len(state.models), 'model')}, {state.length} entries in its log"
    )


def _log(state: State) -> Remark:
    if state.damaged_from is not None:
        text = f"log entry {state.damaged_from}, or one before it, is damaged: nothing can be written"
        return Remark("log", ACT, text, "cairn verify names it; put a copy of it back")
    if state.newer_from is not None:
        text = f"log entry {state.newer_from} is of a newer Cairn: here the store can be read, as of that entry"
        return Remark("log", ACT, text, "upgrade Cairn on this machine")
    void = f"; {len(state.voids)} have no effect, the last is {state.voids[-1].n}" if state.voids else ""
    return Remark("log", FINE, f"the log is in order up to entry {state.length - 1}{void}")


def _writable(registry: Registry) -> Remark:
    root = store_folder(registry.opened)
    try:
        registry.check_writable()
    except NotAllowed as error:
        return Remark("writing", NOTE, f"you cannot write: {error.message}", error.hint)
    except CairnError as error:
        return Remark("writing", ACT, f"nothing can be written: {error.message}", error.hint)
    if root is not None and not os.access(root, os.W_OK):
        text = "the store's folder cannot be written to by this account: it can be read"
        return Remark("writing", NOTE, text, "mount it writable, or ask for the right, if you mean to write")
    return Remark("writing", FINE, "log and rights allow writing")


def _sessions(registry: Registry, sessions: list[SeenSession]) -> Iterator[Remark]:
    for one in sessions:
        name = f"session {one.id.hex()}"
        if one.record is None:
            text = f"{name} cannot be read; it protects everything until it is given up"
            yield Remark(
                "sessions", ACT, text, f"cairn gc apply --yes --give-up {one.id.hex()}, if no writer is at work"
            )
            continue
        age = (registry.opened.clock.wall_ns() - one.record.claimed_at) / _NS
        where = f"{name} of {_process(one.record.process)}, opened {span(age)} ago"
        if one.dead:
            yield Remark("sessions", NOTE, f"{where}, is dead", "cairn gc apply --yes removes what it left")
        else:
            text = f"{where}, counts as alive; without a sign of life it is given up in {span(one.seconds_left)}"
            yield Remark("sessions", FINE, text)
    if not sessions:
        yield Remark("sessions", FINE, "no writer is at work")


def _process(mark: ProcessMark) -> str:
    if not mark.machine:
        return "an unknown process"
    if mark.machine != this_machine():
        return f"process {mark.number} of another machine"
    return f"process {mark.number} of this machine" + (" (which runs no more)" if is_known_dead(mark) else "")


def _pins(registry: Registry, silence: Silence) -> Iterator[Remark]:
    for one in list_pins(registry.opened, silence):
        if one.record is None:
            yield Remark("pins", NOTE, f"{one.name} cannot be read: it keeps everything until it is given up")
            continue
        reads = f"{_process(one.record.process)} reads checkpoint {one.record.checkpoint.hex()[:12]} ({one.name})"
        yield Remark("pins", NOTE if one.dead else FINE, f"{reads}; it counts as dead" if one.dead else reads)
    ended = sum(listed.name.endswith(ENDED) for listed in registry.opened.backend.list(FOLDER))
    if ended:
        yield Remark("reads", FINE, f"{several(ended, 'read')} that ended wait for 'cairn audit gather' or 'gc apply'")


def _condemned(state: State, sessions: list[SeenSession]) -> Iterator[Remark]:
    if not state.condemned and not state.condemned_objects:
        return
    packs = sum(state.pack(number).size for number in state.condemned)
    newest = max([*state.condemned.values(), *state.condemned_objects.values()])
    waits = [one.id.hex() for one in sessions if not one.dead and one.epoch < newest]
    text = (
        f"{several(len(state.condemned), 'pack')} of {size(packs)} and "
        f"{several(len(state.condemned_objects), 'other object')} are condemned and not deleted yet"
    )
    if waits and state.floor < newest:
        yield Remark("condemned", NOTE, f"{text}: they wait for session {', '.join(waits[:3])}", "cairn gc apply --yes")
    else:
        yield Remark("condemned", NOTE, text, "cairn gc apply --yes deletes them")


def _leftovers(registry: Registry, state: State, sessions: list[SeenSession]) -> Remark:
    objects = list_objects(registry.opened)
    dead = left_over(objects, state, sessions)
    if dead:
        text = f"interrupted writers left {several(len(dead), 'object')} of {size(sum(objects[key] for key in dead))}"
        return Remark(
            "leftovers", NOTE, text, "cairn gc apply --yes frees them; 'cairn gc plan' tells what else would go"
        )
    found = left_over(objects, state, ())
    under_way = f"; live writers have {size(sum(objects[key] for key in found))} under way" if found else ""
    return Remark("leftovers", FINE, f"nothing is left over{under_way}")


def _deleted(registry: Registry) -> Iterator[Remark]:
    due = due_to_drop(registry)
    if due:
        text = f"{several(len(due), 'deleted checkpoint')} can no longer be restored, and still take space"
        yield Remark("deleted", NOTE, text, "cairn gc apply --yes")
    models = due_to_shred(registry)
    if models:
        text = f"{several(len(models), 'deleted model')} can be restored until an owner collects"
        yield Remark("deleted", NOTE, text, "cairn gc apply --yes of an owner; 'cairn delete status' lists them")
    models = to_destroy(registry.state)
    if models:
        text = f"the keys of {several(len(models), 'deleted model')} were to be destroyed, and may still be there"
        yield Remark("deleted", ACT, text, "cairn gc apply --yes of an owner finishes it")


def _held(state: State) -> Iterator[Remark]:
    held = [model for model in state.kept_models().values() if model.holds]
    if held:
        holds = sum(len(model.holds) for model in held)
        yield Remark("holds", FINE, f"{several(holds, 'hold')} of {several(len(held), 'model')}: 'cairn hold list'")


def _given_up(state: State) -> Iterator[Remark]:
    ids = [root.checkpoint.hex()[:12] for root in live_checkpoints(state) if root.state.quarantined]
    if ids:
        text = f"the content of {several(len(ids), 'checkpoint')} was given up by 'gc quarantine': {', '.join(ids[:3])}"
        yield Remark("quarantine", NOTE, text, "cairn verify --repair --from a store that has it")


def _verified(registry: Registry, state: State) -> Remark:
    roots = live_checkpoints(state)
    if not roots:
        return Remark("verified", FINE, "there is nothing to verify")
    read = [root for root in roots if root.state.verified in ("sampled", "full")]
    if not read:
        text = "no checkpoint is known to have been read and found whole"
        return Remark("verified", NOTE, text, "cairn verify --full --record")
    newest = max(read, key=lambda root: root.state.verified_at)
    age = (registry.opened.clock.wall_ns() - newest.state.verified_at) / _NS
    text = (
        f"{len(read)} of {several(len(roots), 'checkpoint')} were read and found whole, last {span(age)} ago "
        f"({newest.state.verified})"
    )
    if age > _VERIFY_DAYS * _DAY_SECONDS:
        return Remark("verified", NOTE, text, "cairn verify --full --record")
    return Remark("verified", FINE, text)
