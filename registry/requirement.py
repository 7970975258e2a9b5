"""Whether a checkpoint may be taken for what a name says, by the word of those whom this user trusts.

What counts is what stands under a trusted signature: tenant, model by id and name, ref, checkpoint. Which statements
there are is the store's word alone. So two things are beyond this check: a store that is an old copy throughout, to
somebody who has nothing newer; and a statement that was never shown to anybody.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from cairn.core.errors import RefusedError, UsageError
from cairn.core.ids import ActorId, CheckpointId, ModelId, short
from cairn.core.shown import Shown
from cairn.registry.attestations import Attested, Unfit, attestations, names_of, places, read_attestation
from cairn.registry.checkpoint import committed, read_body
from cairn.registry.names import ref_tag
from cairn.registry.registry import Registry
from cairn.registry.selectors import STEP, parse_selector
from cairn.registry.statement import rfc3339
from cairn.registry.trust import Trust

_LISTED = 8


class Vouched(Shown, frozen=True):
    """Who vouches for a checkpoint, and when the newest of them signed (microseconds since 1970)."""

    signers: tuple[ActorId, ...]
    signed_at: int


def check_signed(
    registry: Registry, model: ModelId, checkpoint: CheckpointId, selector: str, trust: Trust,
    local: Registry | None = None,
) -> Vouched:  # fmt: skip
    """See that a trusted signer says of a checkpoint that it is what the selector names.

    By a branch or tag: that this very name means it, and that none says later that it means another. By id: that it
    is one of the model, under whatever ref.

    Args:
        local: the store that is about to get it; statements that it holds count as well.

    Raises:
        RefusedError: nobody does; whoever calls has changed nothing yet.
        UsageError: it is named by its step, which nobody signs.
    """
    if parse_selector(selector).revision.startswith(STEP):
        raise UsageError("a step is no name that anybody signs", hint="name a branch, a tag or an id")
    name, ref, _ = names_of(registry, model, selector)
    trusted = trust.of(name)
    if not trusted:
        raise RefusedError(
            f"{selector!r} has to be signed, and nobody's signature counts for model {name!r} by {trust.source}",
            hint="ask whoever signs for the line of 'cairn identity', then: cairn trust add LINE (before a clone, with "
            "--store URL)",
        )
    stores = [one for one in (registry, local) if one is not None and _has(one, model, checkpoint)]
    found = [one for store in stores for one in attestations(store, model, checkpoint)]
    fit = [one for one in found if isinstance(one, Attested)]
    good = [one for one in fit if one.subject.model_name == name and (not ref or one.subject.ref == ref)]
    vouching = [(one, signers) for one in good if (signers := one.envelope.signers(trusted))]
    if not vouching:
        raise RefusedError(
            f"checkpoint {short(checkpoint)}, which {selector!r} means in {registry.opened.backend.url}, is not signed "
            f"as {name + '@' + ref if ref else name!r} by anybody who counts: {_others(found, trusted)}",
            hint="let a trusted signer run 'cairn sign' and push, or name another signer with 'cairn trust add'",
        )
    newest = max(one.subject.signed_at for one, _ in vouching)
    if ref:
        for store in (registry, *((local,) if local is not None else ())):
            _check_newest(store, model, checkpoint, (name, ref), trusted, newest)
    return Vouched(tuple(sorted({actor for _, signers in vouching for actor in signers})), newest)


def check_linked(registry: Registry, model: ModelId, chain: Sequence[CheckpointId]) -> None:
    """See that each checkpoint of a history, newest first, names the next one as its parent.

    A body names parents, and its id, which is signed of the newest, speaks for all of the body.

    Raises:
        RefusedError: one does not.
    """
    for newer, older in pairwise(chain):
        parents = read_body(registry, model, newer, committed(registry, model, newer)).parents
        if older not in {parent.checkpoint for parent in parents}:
            raise RefusedError(
                f"{short(older)} is not what {short(newer)} says that it was made from, so no signature speaks for it",
                hint="bring the tip alone, without --history",
            )


def _has(registry: Registry, model: ModelId, checkpoint: CheckpointId) -> bool:
    held = registry.state.models.get(model)
    return held is not None and checkpoint in held.checkpoints


def _check_newest(
    registry: Registry, model: ModelId, checkpoint: CheckpointId, names: tuple[str, str],
    trusted: Collection[bytes], newest: int,
) -> None:  # fmt: skip
    """Raise if a trusted signer has said at the same time or later that the ref means another checkpoint."""
    name, ref = names
    tag = ref_tag(registry.opened.secrets.k_log, model, ref)
    later = [(at.signed_at, other, at) for other, at in places(registry.state, model, tag) if at.signed_at >= newest]
    for _, other, place in sorted(later, key=lambda one: one[0], reverse=True):
        if other == checkpoint or place.signer not in trusted:
            continue
        found = read_attestation(registry, model, other, place)
        if isinstance(found, Attested) and found.subject.model_name == name:
            raise RefusedError(
                f"{name}@{ref} is {short(checkpoint)} by a statement of {rfc3339(newest)}, and {short(place.signer)} "
                f"has said at {rfc3339(place.signed_at)} that it is {short(other)}: the ref was put back",
                hint=f"ask why; if it is meant, let a trusted signer run: cairn sign {name}@{ref}",
            )


def _others(found: list[Attested | Unfit], trusted: Collection[bytes]) -> str:
    """Whose signatures there are instead, and on what."""
    told = list(dict.fromkeys(_told(found, trusted)))
    listed = "; ".join(told[:_LISTED]) + (f"; and {len(told) - _LISTED} more" if len(told) > _LISTED else "")
    return listed or "it bears no signature"


def _told(found: list[Attested | Unfit], trusted: Collection[bytes]) -> Iterator[str]:
    for one in found:
        if isinstance(one, Unfit):
            yield f"log entry {one.place.n} holds none ({one.why})"
        else:
            standing = "trusted" if one.place.signer in trusted else "not trusted"
            yield f"{short(one.place.signer)} ({standing}) signed it as {one.subject.name!r}"
