"""Signers, and statements that are forged in every way in which one can."""

from functools import partial
from typing import Any

from msgspec.structs import replace

from cairn.registry.attestations import Attested, sign
from cairn.registry.entries_attest import Attest
from cairn.registry.names import ref_tag
from cairn.registry.registry import Registry
from cairn.registry.state import State
from cairn.registry.statement import Statement, Subject, encode_statement
from cairn.registry.trust import Signer, Trust
from cairn.store.crypto.dsse import IN_TOTO, Envelope, sign_envelope
from cairn.store.crypto.signing import Identity
from tests.support.doubles import SeededEntropy
from tests.support.stores import Site, tip

VERSION = "0"
ALICE, BOB, MALLORY = (Identity.generate(SeededEntropy(seed)) for seed in (901, 902, 903))


def trusting(*identities: Identity, models: tuple[str, ...] = ()) -> Trust:
    """Trust in some signers."""
    return Trust(tuple(Signer(one.line(), models) for one in identities), "the test")


def signed(site: Site, selector: str = "m", by: Identity = ALICE) -> Attested:
    """Sign what a selector means."""
    return sign(site.registry(), selector, VERSION, by)


def subject_of(registry: Registry, selector: str = "m", ref: str = "main", kind: str = "branch") -> Subject:
    """A subject as `sign` makes it."""
    model, checkpoint = tip(registry, selector)
    now = registry.opened.clock.wall_ns() // 1000
    return Subject(registry.opened.tenant, model, selector.rpartition("@")[0] or selector, checkpoint, ref, kind, now)


def forged(subject: Subject, by: Identity = ALICE, **changes: Any) -> Envelope:
    """An envelope about a subject that was changed before it was signed."""
    return sign_envelope(IN_TOTO, encode_statement(Statement(replace(subject, **changes), {})), by)


def put(registry: Registry, subject: Subject, envelope: Envelope | bytes, signer: Identity = ALICE) -> int:
    """Write an entry that says of any envelope what `subject` and `signer` say."""
    data = envelope.encode() if isinstance(envelope, Envelope) else envelope
    tag = ref_tag(registry.opened.secrets.k_log, subject.model, subject.ref) if subject.ref else b""
    sealed = registry.model_keys(subject.model).seal_meta(data, "attestation")
    payload = Attest(subject.model, subject.checkpoint, tag, signer.actor, subject.signed_at, sealed)
    return registry.append(partial(_as_is, payload))


def _as_is(payload: Attest, state: State) -> Attest:
    return payload


def seen(site: Site) -> object:
    """All that a refused command must leave as it is: the log, and what names mean."""
    registry = site.registry()
    return site.log(), {key: dict(model.refs) for key, model in registry.state.models.items()}
