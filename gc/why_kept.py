"""Why something is still here: who needs it, or what its collection waits for. Reads lists and the index only."""

from collections.abc import Iterator
from dataclasses import dataclass

from cairn.core.errors import CairnError, NotFoundError, ObjectNotFound
from cairn.core.ids import ContentId, ModelId, SessionId, short
from cairn.gc.observe import list_pins, list_sessions
from cairn.gc.remark import several, span
from cairn.gc.roots import Root, all_roots
from cairn.gc.silence import Silence
from cairn.gc.subject import Subject
from cairn.registry.indexing import locations_of
from cairn.registry.models import list_refs, model_name
from cairn.registry.reachability import read_reachability
from cairn.registry.registry import Registry
from cairn.registry.state import State, object_key, objects_of


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason.

    Args:
        kind: `checkpoint`, `index`, `session`, `pin`, `condemned`, `unneeded`, `place` or `unknown`.
        holder: id of the checkpoint, session or pin; empty where there is none.
    """

    kind: str
    holder: str
    text: str


def why_kept(registry: Registry, subject: Subject) -> list[Reason]:
    """All reasons why something is still here.

    Raises:
        NotFoundError: it is not.
    """
    return list(_Kept(registry).reasons(subject))


class _Kept:
    def __init__(self, registry: Registry) -> None:
        self._registry, self._opened = registry, registry.opened
        self._state: State = registry.refresh()
        self._silence = Silence.of(self._opened, self._state)

    def reasons(self, subject: Subject) -> Iterator[Reason]:
        if subject.model:
            raise NotFoundError(f"{subject.name} was deleted", hint="'cairn why-gone' tells what became of it")
        if subject.checkpoint:
            yield from self._checkpoint(subject)
        elif subject.content is not None:
            yield from self._content(subject.content)
        elif subject.pack is not None:
            yield from self._pack(subject.pack)
        else:
            yield from self._object(subject)

    # --- what it is ---------------------------------------------------------------------------------

    def _checkpoint(self, subject: Subject) -> Iterator[Reason]:
        roots = [root for root in all_roots(self._state) if root.checkpoint == subject.checkpoint]
        if not roots:
            raise NotFoundError(f"{subject.name} is not here", hint="'cairn why-gone' tells what became of it")
        yield from (Reason("checkpoint", root.checkpoint.hex(), self._about(root)) for root in roots)
        yield from self._pins({bytes(root.checkpoint) for root in roots})

    def _content(self, identifier: ContentId) -> Iterator[Reason]:
        yield from self._needed({identifier}, "needs it")
        for at in self._registry.index().locations(identifier, marked=True):
            text = f"it lies in {self._state.pack(at.pack).name}, byte {at.offset}, {at.length} bytes"
            yield Reason("place", "", text)

    def _pack(self, number: int) -> Iterator[Reason]:
        state = self._state
        if number in state.condemned:
            yield from self._condemned(state.condemned[number])
        elif not state.in_force(number):
            raise NotFoundError(f"pack {state.pack(number).name} was deleted", hint="ask 'cairn why-gone'")
        ids = self._held_by(number)
        if ids is None:
            yield Reason(
                "unknown", "", "nothing tells what it holds, so collection leaves it alone: run 'cairn verify'"
            )
            return
        yield from self._needed(ids, "needs {count} of its chunks and pages")

    def _object(self, subject: Subject) -> Iterator[Reason]:
        key, state = subject.key, self._state
        epoch = state.condemned_objects.get(key)
        if epoch is not None:
            yield from self._condemned(epoch)
            return
        holders = [root for root in all_roots(state) if key in objects_of(root.state)]
        if holders:
            yield from (Reason("checkpoint", one.checkpoint.hex(), f"part of {self._about(one)}") for one in holders)
            yield from self._pins({bytes(one.checkpoint) for one in holders})
        elif any(key == object_key(piece.object, "index") for piece in state.pieces):
            yield Reason("index", "", "it is an index piece in force: it tells what packs hold")
        else:
            yield from self._leftover(subject)

    def _leftover(self, subject: Subject) -> Iterator[Reason]:
        try:
            self._opened.backend.size(subject.name)
        except ObjectNotFound:
            raise NotFoundError(
                f"{subject.name} is not here", hint="'cairn why-gone' tells what became of it"
            ) from None
        owner = SessionId(subject.key[:16])
        for one in list_sessions(self._opened, self._silence):
            if one.id == owner:
                ends = "it is dead" if one.dead else f"it is given up after {span(one.seconds_left)} more of silence"
                text = f"no entry names it; session {owner.hex()}, which stored it, still has its object: {ends}"
                yield Reason("session", owner.hex(), text)
                return
        text = "no entry names it and its writer has ended: the next 'cairn gc apply --yes' takes it"
        yield Reason("unneeded", "", text)

    # --- who needs it -------------------------------------------------------------------------------

    def _held_by(self, number: int) -> set[ContentId] | None:
        for piece in self._state.pieces:
            if piece.first <= number < piece.first + piece.count:
                listed, complete = locations_of(self._opened, self._state, piece)
                ids = {one for one, at in listed if at.pack == number}
                return ids if complete or ids else None
        return None

    def _needed(self, ids: set[ContentId], how: str) -> Iterator[Reason]:
        holders = set[bytes]()
        for root in all_roots(self._state):
            try:
                count = len(ids.intersection(read_reachability(self._opened, root.state)))
            except CairnError as error:
                text = (
                    f"the list of checkpoint {short(root.checkpoint)} cannot be read, so nothing goes: {error.message}"
                )
                yield Reason("unknown", root.checkpoint.hex(), text)
                continue
            if count:
                holders.add(root.checkpoint)
                text = f"{self._about(root)} {how.format(count=count)}"
                yield Reason("checkpoint", root.checkpoint.hex(), text)
        yield from self._pins(holders)
        if not holders:
            text = "no checkpoint needs it: 'cairn gc apply --yes' takes it, once no older session or pin is at work"
            yield Reason("unneeded", "", text)

    def _about(self, root: Root) -> str:
        held = self._state.kept_model(root.model)
        gone = held.gone.get(root.checkpoint) if held is not None else None
        name = f"checkpoint {short(root.checkpoint)} of {self._name(root.model)}"
        if root.model in self._state.deleted:
            return f"{name} (whose model was deleted, but it can be restored)"
        if gone is not None:
            return f"{name} (deleted by entry {gone.n}, but it can be restored)"
        try:
            refs = [one for one in list_refs(self._registry, root.model) if one.checkpoint == root.checkpoint]
        except CairnError:
            refs = []
        return f"{name} ({', '.join(f'{one.kind} {one.name}' for one in refs)})" if refs else name

    def _name(self, model: ModelId) -> str:
        try:
            return model_name(self._registry, model)
        except CairnError:
            return f"model {model.hex()}"

    def _pins(self, checkpoints: set[bytes]) -> Iterator[Reason]:
        for one in list_pins(self._opened, self._silence):
            if one.record is None or one.record.checkpoint in checkpoints:
                dead = ", which counts as dead" if one.dead else ""
                yield Reason("pin", one.name, f"{one.name} protects a read of it{dead}")

    def _condemned(self, epoch: int) -> Iterator[Reason]:
        state = self._state
        text = f"it is condemned since collection epoch {epoch}, and not deleted yet"
        if epoch <= state.floor:
            yield Reason(
                "condemned", "", f"{text}: the next 'cairn gc apply --yes' deletes it, unless a pin protects it"
            )
            live = {root.checkpoint for root in all_roots(state)}
            # A pin of what still lives protects nothing that is condemned.
            pinned = (one.record.checkpoint for one in list_pins(self._opened, self._silence) if one.record)
            yield from self._pins(set(pinned) - live)
            return
        older = [one for one in list_sessions(self._opened, self._silence) if not one.dead and one.epoch < epoch]
        waits = f"it waits for {several(len(older), 'older session')}" if older else "no older session is at work"
        yield Reason(
            "condemned", "", f"{text}: {waits}; 'cairn gc apply --yes' goes on, 'cairn gc cancel' takes it back"
        )
        for one in older:
            text = f"session {one.id.hex()} is given up after {span(one.seconds_left)} more of silence"
            yield Reason("session", one.id.hex(), text)
