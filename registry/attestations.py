"""Signed statements about checkpoints: made, read back, and brought to where their checkpoint goes."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from cairn.core.errors import BadInput, CairnError, IntegrityError, RefusedError
from cairn.core.ids import ActorId, CheckpointId, ModelId, short
from cairn.core.limits import ATTESTATION_BYTES_MAX, ATTESTATIONS_PER_ACTOR_MAX
from cairn.registry.entries import open_entry, payload_of
from cairn.registry.entries_attest import Attest
from cairn.registry.log import read_entry
from cairn.registry.models import ref_kind
from cairn.registry.names import LATEST, MAIN, ref_tag
from cairn.registry.origin import predicate_of
from cairn.registry.registry import Registry
from cairn.registry.selectors import parse_selector, resolve
from cairn.registry.state import Attestation, State
from cairn.registry.statement import Statement, Subject, decode_statement, encode_statement
from cairn.store.crypto.dsse import IN_TOTO, Envelope, parse_envelope, sign_envelope
from cairn.store.crypto.signing import Identity

_PURPOSE = "attestation"
# A time so far ahead comes from a clock that is wrong, or from somebody who wants others to follow it.
_AHEAD_MICROSECONDS_MAX = 86_400 * 10**6


class Attested(NamedTuple):
    """A statement that is signed as its place in the log says, about the checkpoint at which it stands.

    Nobody need know the signer: what that is worth is for `requirement.py` to say. `sealed` is the envelope as it
    stands in the entry.
    """

    place: Attestation
    envelope: Envelope
    statement: Statement
    sealed: bytes

    @property
    def subject(self) -> Subject:
        """What it is about."""
        return self.statement.subject


class Unfit(NamedTuple):
    """An entry that holds no such statement, or one that this user cannot open, and why."""

    place: Attestation
    why: str


def sign(registry: Registry, selector: str, version: str, identity: Identity | None = None) -> Attested:
    """Sign what a selector means, and by a branch or tag also that it means it; keep that in the log.

    Args:
        version: of the program, for the statement.
        identity: signs the statement; by default the user's own. The entry is the user's in any case.

    Raises:
        NotAllowed: this user may not write to the model; nothing was changed.
        RefusedError: the names are too long for a statement.
    """
    registry.refresh()
    model, checkpoint = resolve(registry, selector)
    registry.check_writable()
    registry.check_may_write(model)
    name, ref, kind = names_of(registry, model, selector)
    tag = ref_tag(registry.opened.secrets.k_log, model, ref) if ref else b""
    now = registry.opened.clock.wall_ns() // 1000
    subject = Subject(
        registry.opened.tenant, model, name, checkpoint, ref, kind, _after_others(registry.state, model, tag, now)
    )
    statement = Statement(subject, predicate_of(registry, model, checkpoint, version))
    identity = identity or registry.opened.identity
    envelope = sign_envelope(IN_TOTO, encode_statement(statement), identity)
    payload = Attest(
        model, checkpoint, tag, identity.actor, subject.signed_at,
        registry.model_keys(model).seal_meta(envelope.encode(), _PURPOSE),
    )  # fmt: skip
    if len(payload.envelope) > ATTESTATION_BYTES_MAX:
        raise RefusedError(
            f"a statement of {len(payload.envelope)} bytes is over the limit of {ATTESTATION_BYTES_MAX}",
            hint="the names of model and ref are too long to be signed: give the ref a shorter one",
        )

    def build(state: State) -> Attest:
        # The name may have moved while the statement was made; then it is not what was asked for.
        held = state.live_model(model).refs.get(tag)
        if ref and (held is None or held.checkpoint != checkpoint):
            raise RefusedError(
                f"{subject.name} was moved or removed meanwhile; nothing was signed", hint="repeat the command"
            )
        return payload

    n = registry.append(build)
    place = Attestation(n, registry.signer().actor, identity.actor, tag, subject.signed_at)
    return Attested(place, envelope, statement, payload.envelope)


def names_of(registry: Registry, model: ModelId, selector: str) -> tuple[str, str, str]:
    """Model name of a selector, and name and kind of the ref that it names; empty where it names none."""
    name, revision = (parsed := parse_selector(selector)).model, parsed.revision
    ref = MAIN if revision == LATEST else revision
    kind = ref_kind(registry, model, ref)
    return (name, ref, kind) if kind else (name, "", "")


def _after_others(state: State, model: ModelId, tag: bytes, now: int) -> int:
    """A time for a new statement: the present, but after all about the same ref, whatever clock those were made by."""
    told = (one.signed_at for _, one in places(state, model, tag)) if tag else ()
    return max([now, *(at + 1 for at in told if at < now + _AHEAD_MICROSECONDS_MAX)])


def places(state: State, model: ModelId, tag: bytes) -> Iterator[tuple[CheckpointId, Attestation]]:
    """Statements about a ref, by its tag, whatever checkpoint they name."""
    held = state.models.get(model)
    for checkpoint, one in held.checkpoints.items() if held else ():
        for place in one.attestations:
            if place.tag == tag:
                yield CheckpointId(checkpoint), place


def attestations(registry: Registry, model: ModelId, checkpoint: CheckpointId) -> list[Attested | Unfit]:
    """All statements about a checkpoint that the log holds, in its order."""
    held = registry.state.live_model(model).checkpoints[checkpoint]
    return [read_attestation(registry, model, checkpoint, place) for place in held.attestations]


def read_attestation(
    registry: Registry, model: ModelId, checkpoint: CheckpointId, place: Attestation
) -> Attested | Unfit:
    """Read one back, and see that it is what the log says of it."""
    what = f"the statement in log entry {place.n}"
    try:
        payload = _payload(registry, place.n)
        if (payload.model, payload.checkpoint) != (model, checkpoint):
            raise IntegrityError(f"{what} is about another checkpoint")
        opened = registry.model_keys(model).open_meta(payload.envelope, _PURPOSE, what)
        envelope = parse_envelope(opened, what)
        found = Attested(place, envelope, statement_in(envelope, what), payload.envelope)
        _check_place(registry, model, checkpoint, found)
    except CairnError as error:
        return Unfit(place, error.message)
    return found


def _payload(registry: Registry, n: int) -> Attest:
    opened = registry.opened
    entry = open_entry(read_entry(opened, n)[0], n, opened.tenant, opened.store, opened.secrets.k_log)
    payload = payload_of(entry)
    if not isinstance(payload, Attest):
        raise IntegrityError(f"log entry {n} holds no statement")
    return payload


def statement_in(envelope: Envelope, what: str) -> Statement:
    """The statement that an envelope holds.

    Raises:
        BadInput: it holds something else.
    """
    if envelope.payload_type != IN_TOTO:
        raise BadInput(f"{what} holds {envelope.payload_type!r:.80}, and no statement of in-toto")
    return decode_statement(envelope.payload, what)


def _check_place(registry: Registry, model: ModelId, checkpoint: CheckpointId, found: Attested) -> None:
    place, subject, k_log = found.place, found.subject, registry.opened.secrets.k_log
    if (subject.tenant, subject.model, subject.checkpoint) != (registry.opened.tenant, model, checkpoint):
        raise IntegrityError("it was signed for another checkpoint, model or tenant")
    tag = ref_tag(k_log, model, subject.ref) if subject.ref else b""
    if (tag, subject.signed_at) != (place.tag, place.signed_at):
        raise IntegrityError("it was signed for another ref or time than the log says")
    if not found.envelope.signers([ActorId(place.signer)]):
        raise IntegrityError(f"it bears no signature of {short(place.signer)}, whom the log names")


def carry(source: Registry, target: Registry, model: ModelId, checkpoint: CheckpointId) -> int:
    """Bring the statements about a checkpoint to another store that has it; returns how many were new there.

    They go as they are. What is unfit stays behind, and so does what this user has no room for.
    """
    brought = 0
    for found in attestations(source, model, checkpoint):
        if isinstance(found, Unfit):
            continue
        there = target.state.live_model(model).checkpoints.get(checkpoint)
        if there is None:  # it was deleted there since it was brought
            break
        ref, place = found.subject.ref, found.place
        tag = ref_tag(target.opened.secrets.k_log, model, ref) if ref else b""
        known = any(
            (one.signer, one.tag) == (place.signer, tag) and one.signed_at >= place.signed_at
            for one in there.attestations
        )
        mine = sum(one.actor == target.signer().actor for one in there.attestations)
        if known or mine >= ATTESTATIONS_PER_ACTOR_MAX:
            continue
        payload = Attest(model, checkpoint, tag, place.signer, place.signed_at, found.sealed)
        target.append(partial(_as_is, payload))
        brought += 1
    return brought


def _as_is(payload: Attest, state: State) -> Attest:
    return payload
