"""Rendering: names are made safe for a terminal, bytes are made readable."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

import click

# Marks a checkpoint that is here in part.
PARTIAL = "[partial]"


def safe(text: str) -> str:
    """Text of a foreign hand for a terminal: control characters, and what could redraw a line, are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def emit(text: str) -> None:
    """One line of data on standard output."""
    click.echo(text)


def note(text: str) -> None:
    """One line on standard error."""
    click.echo(text, err=True)


def emit_json(value: Any) -> None:
    """One JSON value on standard output."""
    click.echo(json_text(value))


def json_text(value: Any) -> str:
    """JSON as it goes to standard output: for people on a terminal, for programs elsewhere."""
    return json.dumps(value, ensure_ascii=True, indent=2 if sys.stdout.isatty() else None)


def json_numbers(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """Numbers for JSON, which has neither NaN nor infinity."""
    return {name: value if isfinite(value) else None for name, value in numbers.items()}


def size(count: int | float) -> str:
    """Bytes for people, in binary units."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def count(number: int, noun: str, several: str = "") -> str:
    """A number of things; `several` is the plural of a noun that does not just take an s."""
    return f"{number} {noun if number == 1 else several or noun + 's'}"


def when(claimed_at_ns: int) -> str:
    """A claimed time, in the local zone."""
    from datetime import datetime

    return datetime.fromtimestamp(claimed_at_ns / 1e9).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns padded to their widest cell; no headings without rows."""
    lines = [tuple(map(safe, row)) for row in rows]
    if not lines:
        return
    lines.insert(0, tuple(headings))
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    for line in lines:
        emit("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
