"""One thing that a doctor says."""

from dataclasses import dataclass

FINE, NOTE, ACT = "fine", "note", "act"


@dataclass(frozen=True, slots=True)
class Remark:
    """A sentence about one topic.

    Args:
        level: `fine`, `note` (nothing needs to be done), or `act` (something needs a hand).
        next: what to do.
    """

    topic: str
    level: str
    text: str
    next: str = ""


def span(seconds: float) -> str:
    """A time for people."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def size(count: int) -> str:
    """Bytes for people."""
    for unit, bits in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << bits:
            return f"{count / (1 << bits):.1f} {unit}"
    return f"{count} B"


def several(count: int, what: str, plural: str = "") -> str:
    """`1 pack`, `2 packs`; `plural` is that of a noun that does not just take an s."""
    return f"{count} {what if count == 1 else plural or what + 's'}"
