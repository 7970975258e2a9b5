"""What the plans of retention and of deletion share: the state that they are bound to, and their files."""

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import msgspec
from blake3 import blake3

from cairn.core.canonical import encode
from cairn.core.errors import BadInput, NotFoundError, UsageError
from cairn.core.ids import ModelId
from cairn.core.limits import PLAN_BYTES_MAX
from cairn.registry.registry import Registry
from cairn.registry.state import Model

_Plan = TypeVar("_Plan", bound=msgspec.Struct)


def fingerprint(model: Model, without: Collection[bytes] = ()) -> str:
    """Hash of a model's refs and checkpoints: whatever changes them makes a plan void.

    Args:
        without: tags of refs that count as removed.
    """
    refs = sorted((tag, ref) for tag, ref in model.refs.items() if tag not in without)
    return blake3(encode([refs, sorted(model.checkpoints.items())])).hexdigest()


def model_of_plan(registry: Registry, store: str, model: str) -> ModelId:
    """The model that a plan is of, by hexadecimal ids.

    Raises:
        UsageError: it is of another store.
        NotFoundError: the store has no such model.
    """
    check_store(registry, store)
    found = ModelId(bytes.fromhex(model))
    if found not in registry.state.models:
        raise NotFoundError(f"the store has no model {model}, which the plan is of", hint="'cairn ls' lists them")
    return found


def check_store(registry: Registry, store: str) -> None:
    """Raise unless a plan is of this store.

    Raises:
        UsageError: it is of another.
    """
    here = registry.opened.store.hex()
    if store != here:
        raise UsageError(f"the plan is of store {store}, this is {here}", hint="name it with --store")


def plan_hash(plan: msgspec.Struct) -> bytes:
    """What an approval of a plan names: BLAKE3 of its file."""
    return blake3(encode_plan(plan)).digest()


def encode_plan(plan: msgspec.Struct) -> bytes:
    """Canonical JSON."""
    return msgspec.json.encode(plan, order="sorted") + b"\n"


class _Form(msgspec.Struct):
    format: str = ""


def format_of_plan(data: bytes) -> str:
    """What a plan's file says that it is; empty if it does not say so."""
    try:
        return msgspec.json.decode(data, type=_Form).format
    except msgspec.MsgspecError:
        return ""


def decode_plan_file(
    data: bytes, kind: type[_Plan], form: str, what: str, ids: Callable[[_Plan], Iterable[str]]
) -> _Plan:
    """Inverse of `encode_plan`.

    Args:
        form: what its `format` must say.
        what: it is a plan of, and the command that makes it.
        ids: those in it, which must be hexadecimal digits.

    Raises:
        BadInput: it is no such plan.
    """
    try:
        if len(data) > PLAN_BYTES_MAX:
            raise ValueError(f"it is longer than {PLAN_BYTES_MAX} bytes")
        plan = msgspec.json.decode(data, type=kind)
        told = getattr(plan, "format", "")
        if told != form:
            raise ValueError(f"its format is {told[:80]!r}")
        for text in ids(plan):
            if bytes.fromhex(text).hex() != text:
                raise ValueError(f"{text[:80]!r} is no id")
    except ValueError as error:
        noun = {"retain": "retention", "delete": "deletion"}[what]
        raise BadInput(f"this is no plan of {noun}: {error}", hint=f"'cairn {what} plan -o FILE' makes one") from None
    return plan
