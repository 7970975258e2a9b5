"""What `cairn tag` and `cairn branch` share."""

from typing import NamedTuple

from cairn.cli.opening import open_registry
from cairn.cli.output import emit, emit_json, note, safe, table
from cairn.core.errors import RefMoved, RefusedError, UsageError
from cairn.core.ids import short


class RefRequest(NamedTuple):
    """Arguments of one call; `kind` is `tag` or `branch`."""

    kind: str
    selector: str
    name: str | None
    delete: bool
    force: bool
    as_json: bool
    quiet: bool


def run_ref_command(request: RefRequest) -> None:
    """List, create, move or remove a ref."""
    if request.name is None:
        if request.delete or request.force:
            raise UsageError(f"which {request.kind}?", hint=f"write 'cairn {request.kind} MODEL NAME'")
        _list(request)
    elif request.delete:
        _delete(request, request.name)
    else:
        _move(request, request.name)


def _list(request: RefRequest) -> None:
    from cairn.registry.models import find_model, list_refs
    from cairn.registry.selectors import parse_selector

    with open_registry() as registry:
        model = find_model(registry, parse_selector(request.selector).model)
        refs = [ref for ref in list_refs(registry, model) if ref.kind == request.kind]
    if request.as_json:
        emit_json([{"name": ref.name, "checkpoint": ref.checkpoint.hex()} for ref in refs])
    elif request.quiet:
        for ref in refs:
            emit(safe(ref.name))
    else:
        table((request.kind.upper(), "CHECKPOINT"), [(ref.name, short(ref.checkpoint)) for ref in refs])
        if not refs:
            several = {"tag": "tags", "branch": "branches"}[request.kind]
            note(f"no {several}: 'cairn {request.kind} MODEL[@REF] NAME' makes one")


def _delete(request: RefRequest, name: str) -> None:
    from cairn.registry.models import delete_ref, find_model
    from cairn.registry.names import MAIN
    from cairn.registry.selectors import parse_selector

    if name == MAIN and not request.force:
        raise RefusedError(f"{MAIN!r} is the default branch", hint="remove it with --delete --force if you mean it")
    with open_registry() as registry:
        model = find_model(registry, parse_selector(request.selector).model)
        was = delete_ref(registry, model, name, request.kind)
    _report(request, f"removed {request.kind} {safe(name)} (was {short(was)})", name, was, None)


def _move(request: RefRequest, name: str) -> None:
    from cairn.registry.models import move_ref, ref_kind, ref_value
    from cairn.registry.names import check_ref_name
    from cairn.registry.selectors import parse_selector, resolve

    check_ref_name(name)
    with open_registry() as registry:
        model, target = resolve(registry, request.selector)
        current, kind = ref_value(registry, model, name), ref_kind(registry, model, name)
        if kind not in (None, request.kind):
            removal = f"cairn {kind} {parse_selector(request.selector).model} {name} -d"
            raise RefMoved(
                f"{name!r} is a {kind}; tags and branches share their names",
                hint=f"choose another name, or remove it: '{removal}'",
            )
        if current is not None and not request.force:
            raise RefMoved(
                f"{request.kind} {name!r} exists and points to {short(current)}", hint="move it with --force"
            )
        move_ref(registry, model, name, request.kind, current, target)
    _report(request, f"{request.kind} {safe(name)} is now {short(target)}", name, current, target)


def _report(request: RefRequest, text: str, name: str, old: bytes | None, new: bytes | None) -> None:
    if request.as_json:
        emit_json({"name": name, "old": old.hex() if old else None, "new": new.hex() if new else None})
    elif request.quiet:
        emit((new or old or b"").hex())
    else:
        emit(text)
