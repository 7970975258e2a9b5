"""How a parser says no: what is wrong, the rule, and the next step."""

from cairn.core.errors import BadInput

# Enough of a hostile name to find it, too little to flood a terminal; `repr` escapes what could act on one.
SHOWN_CHARS = 60

NEXT_STEP = "get the file again from its source, or store it as plain bytes"


def malformed(message: str, *, hint: str = NEXT_STEP) -> BadInput:
    """The error to raise for a file that breaks the rule which `message` names."""
    return BadInput(message, hint=hint)


def shown(text: str) -> str:
    """A foreign name, quoted, escaped and cut short, for messages."""
    return repr(text) if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]!r}..."
