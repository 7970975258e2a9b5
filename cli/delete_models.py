"""What `cairn delete` does with whole models, and with all that was made from something."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cairn.cli.opening import open_registry, store_options
from cairn.cli.output import count, emit, emit_json, note, safe, size, table
from cairn.cli.receipt import check_new, render, write_receipt
from cairn.cli.shredding import say_what_was_shredded, shred
from cairn.core.errors import CairnError, ConflictError, RefusedError, UsageError
from cairn.core.ids import CheckpointId, ModelId, short
from cairn.core.limits import MODEL_GRACE_SECONDS

if TYPE_CHECKING:
    from cairn.registry.modelplan import ModelPart, ModelsPlan
    from cairn.registry.receiptform import Statement
    from cairn.registry.registry import Registry


def facts_about(registry: "Registry", made: "ModelsPlan") -> dict[str, Any]:
    """What a plan is to be judged by: what it frees and shares, who reads, read or could, what keeps it, as JSON."""
    from cairn.gc.freed import readers_now
    from cairn.gc.shred import account
    from cairn.registry.exposure import exposures_of
    from cairn.registry.holding import list_holds
    from cairn.registry.modeldeletion import may_be_outlived
    from cairn.registry.models import name_or_id

    whole = made.whole
    accounts = account(registry, registry.state, whole) if whole else None
    exposures = exposures_of(registry, whole)
    going = {bytes.fromhex(one.checkpoint) for part in made.parts for one in part.goes}
    holds = [
        one
        for part in made.parts
        for one in list_holds(registry, ModelId(bytes.fromhex(part.model)))
        if part.whole or one.checkpoint is None or one.checkpoint in going
    ]
    return {
        "alone": {"chunks": accounts.alone.chunks, "stored_bytes": accounts.alone.stored_bytes} if accounts else None,
        "shared": [
            {
                "model": name_or_id(registry, ModelId(one.model)),
                "chunks": one.content.chunks,
                "stored_bytes": one.content.stored_bytes,
            }
            for one in (accounts.shared if accounts else ())
        ],
        "reading_now": sorted({one.hex() for model in whole for one in readers_now(registry, model)}),
        "could_read": [
            {"model": name_or_id(registry, model), "actor": actor.hex(), "reads": reads}
            for model, one in exposures.items()
            for actor, reads in [*((owner, ["all"]) for owner in one.owners), *one.members.items()]
        ],
        "have_read": [
            {"model": name_or_id(registry, model), "actor": actor.hex(), "reads": number}
            for model, one in exposures.items()
            for actor, number in one.read.items()
        ],
        "holds": [{"hold": one.id.hex(), "reason": one.reason} for one in holds],
        "approval_needed": may_be_outlived(registry, map(CheckpointId, going), whole),
    }


def show(registry: "Registry", made: "ModelsPlan", facts: dict[str, Any] | None, as_json: bool, quiet: bool) -> None:
    """Print a plan."""
    from cairn.registry.models import name_or_id

    if quiet:
        for part in made.parts:
            for one in part.goes:
                emit(one.checkpoint)
    elif as_json:
        import msgspec

        emit_json({**msgspec.to_builtins(made), **(facts or {})})
    else:
        for part in made.parts:
            _show_part(part)
        for left in made.stays:
            name = name_or_id(registry, ModelId(bytes.fromhex(left.model)))
            emit(f"stays, though made from it: {safe(name)}@{left.checkpoint[:12]}")
        if facts is not None:
            _show_facts(facts)
            _say_what_to_consider(made, facts["approval_needed"])


def _say_what_to_consider(made: "ModelsPlan", approval_needed: bool) -> None:
    if made.stays and not made.taint:
        note("note: --taint deletes what was made from it, too")
    if approval_needed:
        note("note: others were made from it, so a second owner has to approve: 'cairn delete approve FILE --yes'")
    if made.whole:
        note("note: once keys are destroyed, a new root key is in force: owners who are no members need its file")


def apply(
    registry: "Registry", made: "ModelsPlan", grace: float | None, receipt: Path | None, as_json: bool, quiet: bool
) -> None:
    """Delete what a plan says; with `receipt`, destroy the keys and collect at once."""
    from cairn.registry.modelplan import apply_models

    if receipt is not None:
        check_receipt_is_possible(made, grace or 0.0, receipt)
        grace = 0.0
    grace = MODEL_GRACE_SECONDS if grace is None else grace
    apply_models(registry, made, grace)
    show(registry, made, None, as_json, quiet)
    if receipt is not None:
        _finish(registry, made, receipt, quiet or as_json)
    elif not quiet:
        until = f"first 'cairn gc apply' after {grace:.0f} seconds" if grace else "next 'cairn gc apply'"
        note(f"'cairn delete restore MODEL' brings a model back until an owner's {until}, which destroys its keys")


def check_receipt_is_possible(made: "ModelsPlan", grace: float, receipt: Path) -> None:
    """Raise unless a receipt can be written right after a plan is carried out.

    Raises:
        UsageError: not while it can be restored.
        RefusedError: no model goes with its keys.
    """
    if grace:
        raise UsageError(
            "a receipt can be written once nothing can be restored, and --grace keeps it restorable",
            hint="run 'cairn gc apply --yes' when the time is over, then 'cairn receipt create MODEL -o FILE'",
        )
    if not made.whole:
        raise RefusedError("no model goes as a whole, so no key is destroyed", hint="leave --receipt out")
    if len(made.whole) > 1 and not receipt.is_dir():
        raise UsageError(f"{len(made.whole)} models go, each with a receipt", hint="name a folder that exists")
    for model in made.whole:
        check_new(_receipt_of(made, model, receipt))


def _receipt_of(made: "ModelsPlan", model: ModelId, receipt: Path) -> Path:
    return receipt if len(made.whole) == 1 else receipt / f"{model.hex()}.json"


def _finish(registry: "Registry", made: "ModelsPlan", receipt: Path, silent: bool) -> None:
    written = list[ModelId]()
    try:
        for told in _destroy_and_collect(registry, made, receipt):
            written.append(ModelId(bytes.fromhex(told.model)))
            if not silent:
                render(told)
    except CairnError:
        gone = (one for one in made.whole if registry.state.kept_model(one) is None)
        for model in (one for one in gone if one not in written):
            note(f"note: 'cairn receipt create {model.hex()} -o FILE' writes a receipt, at any time")
        raise


def _destroy_and_collect(registry: "Registry", made: "ModelsPlan", receipt: Path) -> Iterator["Statement"]:
    from cairn.gc.collect import Collector

    say_what_was_shredded(shred(registry))
    left = [model for model in made.whole if registry.state.kept_model(model) is not None]
    if left:
        raise ConflictError(
            f"model {left[0].hex()} was held or restored meanwhile; its keys are there",
            hint="'cairn hold list', 'cairn delete status'",
        )
    Collector(registry).run()
    for model in made.whole:
        yield write_receipt(registry, model, _receipt_of(made, model, receipt))


def _show_part(part: "ModelPart") -> None:
    for ref in part.refs:
        to = f"moves back to {short(bytes.fromhex(ref.to))}" if ref.to is not None else "is removed"
        emit(f"{safe(ref.kind)} {safe(ref.name)} of {safe(part.name)} {to}")
    if part.whole:
        emit(f"model {safe(part.name)} goes with its keys, all refs and {count(len(part.goes), 'checkpoint')}")
        return
    rows = [(f"{part.name}@{short(bytes.fromhex(one.checkpoint))}", str(one.step or "")) for one in part.goes]
    table(("GOES", "STEP"), rows)


def _show_facts(facts: dict[str, Any]) -> None:
    if facts["alone"] is not None:
        chunks, stored = facts["alone"]["chunks"], facts["alone"]["stored_bytes"]
        emit(f"needed by nothing else: {count(chunks, 'chunk')}, {size(stored)}")
    for one in facts["shared"]:
        emit(f"stays for {safe(one['model'])}: {count(one['chunks'], 'chunk')}, {size(one['stored_bytes'])}")
    for hold in facts["holds"]:
        emit(f"kept by hold {hold['hold'][:12]}: {safe(hold['reason'] or '?')}")
    for one in facts["could_read"]:
        emit(f"can read {safe(one['model'])}: {one['actor'][:12]} ({', '.join(one['reads'])})")
    for one in facts["have_read"]:
        emit(f"has read {safe(one['model'])}: {one['actor'][:12]}, {count(one['reads'], 'time')}")
    emit(f"being read now: {', '.join(one[:12] for one in facts['reading_now']) or 'no'}")


@click.command("approve")
@click.argument("file", metavar="FILE")
@click.option("--yes", is_flag=True, help="Do it.")
@store_options
def approve(file: str, yes: bool) -> None:
    """Consent to a plan as a second owner, where the store's policy asks for one ('cairn audit policy')."""
    from cairn.cli.delete_plan import read_any_plan, show_any
    from cairn.registry.modeldeletion import approve as consent
    from cairn.registry.modelplan import ModelsPlan, check_current
    from cairn.registry.planfiles import check_store, plan_hash

    with open_registry() as registry:
        registry.refresh()
        made = read_any_plan(file)
        check_store(registry, made.store)
        if isinstance(made, ModelsPlan):
            check_current(registry, made)  # nothing is shown or consented to that would not happen
        digest = plan_hash(made)
        name = f"plan {digest.hex()[:12]}"
        if not yes:
            show_any(registry, made)
            raise UsageError(
                f"this consents to {name}; nothing was changed",
                hint="repeat the command with --yes, and compare what it says it approved",
            )
        consent(registry, digest)
    emit(f"approved {name}")
