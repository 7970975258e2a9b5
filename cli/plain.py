"""Rendering plain data: as JSON, and in a few words on a line."""

import json
from collections.abc import Sequence
from math import isfinite
from typing import Any

from cairn.cli.output import count

# What of a value stands on a line.
_SHOWN_CHARS = 72
# Of what two long values have in common, how much is shown before they differ.
_BEFORE_CHARS = 16


def as_json(value: Any) -> Any:
    """Plain data (see `manifests/values.py`) for JSON. Bytes and arrays are told by size, what is no number by name."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, complex):
        return [as_json(value.real), as_json(value.imag)]
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: as_json(item) for key, item in value.items()}
        return [[as_json(key), as_json(item)] for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((as_json(item) for item in value), key=json.dumps)
    return _other(value)


def _other(value: Any) -> Any:
    from cairn.manifests.values import Container, Symbol

    if isinstance(value, Container):
        return {"container": value.kind, "keys": list(value.keys)}
    if isinstance(value, Symbol):
        return value.text
    if hasattr(value, "shape"):  # of numpy, which is not imported for its own sake
        return as_json(value.item()) if not value.shape else {"array": str(value.dtype), "shape": list(value.shape)}
    return {"bytes": len(value.getvalue() if hasattr(value, "getvalue") else value)}


def shown(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, str) and "\n" in value:
        return count(len(value.splitlines()), "line")
    if isinstance(value, str) and value and value == value.strip():
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    form = as_json(value)
    if isinstance(form, dict) and form.keys() == {"bytes"}:
        return count(form["bytes"], "byte")
    if isinstance(form, dict) and form.keys() == {"container", "keys"}:
        return f"{form['container']} of {', '.join(map(str, form['keys'])) or 'nothing'}"
    if isinstance(form, dict) and form.keys() == {"array", "shape"}:
        return f"{form['array']}{form['shape']}"
    return "none" if form is None else json.dumps(form, ensure_ascii=False)


def shown_pair(old: Any, new: Any) -> str:
    """Two values that differ, so that it can be seen where."""
    before, after = shown(old), shown(new)
    if before == after:
        if not (isinstance(old, str | int | float) and isinstance(new, str | int | float)):
            return f"{before} -> others"
        before, after = repr(old), repr(new)
    start = 0
    if max(len(before), len(after)) > _SHOWN_CHARS:
        pairs = enumerate(zip(before, after, strict=False))
        same = next((at for at, (a, b) in pairs if a != b), min(len(before), len(after)))
        start = max(same - _BEFORE_CHARS, 0)
    return f"{_window(before, start)} -> {_window(after, start)}"


def shortened(value: Any) -> str:
    """One value, cut where it is long."""
    return _window(shown(value), 0)


def _window(text: str, start: int) -> str:
    lead = "..." if start else ""
    rest = text[start:]
    return lead + (rest if len(rest) <= _SHOWN_CHARS else f"{rest[:_SHOWN_CHARS]}...")


def dotted(path: Sequence[str | int]) -> str:
    """The path of an item: `optimizer.betas[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
