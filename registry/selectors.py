"""Selectors: `model`, `model@ref`, `model@step:4000`, `model@<id prefix>`; split at the last `@`."""

import msgspec

from cairn.core.errors import GoneError, IntegrityError, NotFoundError, UsageError
from cairn.core.ids import ID_PREFIX_HEX_MIN, CheckpointId, ModelId, short
from cairn.registry.gone import check_none_gone, gone_error
from cairn.registry.models import find_model, history, ref_value
from cairn.registry.names import MAIN
from cairn.registry.registry import Registry

STEP = "step:"
# A step is below 2^63.
_DIGITS_MAX = 19


class Selector(msgspec.Struct, frozen=True):
    """A parsed selector: model name, and what is selected in it (a ref name, `step:N`, or an id prefix)."""

    model: str
    revision: str


def parse_selector(text: str) -> Selector:
    """Parse a selector; a bare model means its main branch.

    Raises:
        UsageError: model or revision is empty.
    """
    model, at, revision = text.rpartition("@")
    if not at:
        model, revision = text, MAIN
    if not model or not revision:
        raise UsageError(f"{text[:80]!r} is not a selector", hint="write MODEL, MODEL@REF, MODEL@step:N or MODEL@ID")
    return Selector(model, revision)


def resolve(registry: Registry, text: str) -> tuple[ModelId, CheckpointId]:
    """Model and checkpoint that a selector means: refs first, then steps of main's ancestry, then id prefixes.

    Raises:
        NotFoundError: nothing of that name, or the prefix fits several.
        GoneError: it was deleted.
    """
    selector = parse_selector(text)
    model = find_model(registry, selector.model)
    revision = selector.revision
    tip = ref_value(registry, model, revision)
    if tip is not None:
        if tip not in registry.state.live_model(model).checkpoints:
            raise IntegrityError(
                f"{revision!r} points to checkpoint {short(tip)}, whose log entry is lost",
                hint="'cairn verify' names the damaged entry; checkpoints before and after it can be read by id",
            )
        return model, tip
    if revision.startswith(STEP):
        return model, _by_step(registry, model, selector)
    return model, _by_prefix(registry, model, selector)


def resolve_any(registry: Registry, text: str) -> tuple[ModelId, CheckpointId]:
    """Model and checkpoint that a selector means; by id also a deleted one.

    Raises:
        NotFoundError: there is and was none, or the id's digits fit several.
        UsageError: a deleted one is named by its step.
    """
    try:
        return resolve(registry, text)
    except GoneError:
        return resolve_deleted(registry, text)


def resolve_deleted(registry: Registry, text: str) -> tuple[ModelId, CheckpointId]:
    """Model and checkpoint of a selector by id, whether deleted or not.

    Raises:
        UsageError: it does not name an id.
        NotFoundError: there is and was none, or the prefix fits several.
    """
    selector = parse_selector(text)
    model = find_model(registry, selector.model)
    if not _is_prefix(selector.revision):
        raise UsageError(f"{text[:80]!r} names no id", hint="write MODEL@ID; 'cairn delete status' lists ids")
    found = _with_prefix(registry, model, selector)
    if found is None:
        raise NotFoundError(
            f"model {selector.model!r} has and had no checkpoint {selector.revision[:80]}",
            hint="'cairn delete status' lists what was deleted",
        )
    return model, found


def _by_step(registry: Registry, model: ModelId, selector: Selector) -> CheckpointId:
    revision, name = selector.revision, selector.model
    digits = revision.removeprefix(STEP)
    if not digits.isascii() or not digits.isdigit() or len(digits) > _DIGITS_MAX:
        raise UsageError(f"{revision[:80]!r} does not name a step", hint="write step: and a whole number")
    step, tip = int(digits), ref_value(registry, model, MAIN)
    for line in history(registry, model, tip):
        if line.meta.step == step:
            return line.id
    check_none_gone(registry, model, tip, lambda meta: meta.step == step)
    raise NotFoundError(
        f"no checkpoint of step {digits} on {MAIN!r} of {name!r}", hint=f"'cairn log {name}' shows the steps"
    )


def _by_prefix(registry: Registry, model: ModelId, selector: Selector) -> CheckpointId:
    found = _with_prefix(registry, model, selector) if _is_prefix(selector.revision) else None
    if found is None:
        name = selector.model
        raise NotFoundError(
            f"model {name!r} has no ref or checkpoint {selector.revision[:80]!r}",
            hint=f"'cairn branch {name}' and 'cairn tag {name}' list refs, 'cairn log {name}' ids: 4 digits will do",
        )
    if found in registry.state.live_model(model).gone:
        raise gone_error(registry, model, found)
    return found


def _is_prefix(revision: str) -> bool:
    return len(revision) >= ID_PREFIX_HEX_MIN and all(c in "0123456789abcdef" for c in revision.lower())


def _with_prefix(registry: Registry, model: ModelId, selector: Selector) -> CheckpointId | None:
    """The checkpoint, deleted or not, whose id begins so; None if there is none."""
    prefix, held = selector.revision.lower(), registry.state.live_model(model)
    found = [one for one in (*held.checkpoints, *held.gone) if one.hex().startswith(prefix)]
    if len(found) > 1:
        raise NotFoundError(f"id prefix {prefix} fits {len(found)} checkpoints", hint="write more digits")
    return CheckpointId(found[0]) if found else None
