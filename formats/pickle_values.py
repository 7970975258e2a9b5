"""What a pickle can mean here: plain Python data, and the inert values below.

* **name** - a global on the closed list; a label, never the object that bears it.
* **storage, tensor** - torch's, by reference: where the bytes lie, not the bytes.
* **opaque tensor** - a tensor whose bytes do not say its elements one by one (sparse, quantized, on the meta device).
* **record** - an instance of an allowed class, as name, arguments and state.
* **frozen key** - a key or set member that is no scalar, with a hash that nobody can aim at.

Plain data is `None`, `bool`, `int`, `float`, `complex`, `str`, `bytes`, `bytearray`, `tuple`, `list`, `dict`, `set`,
`frozenset`, always of exactly that type.
"""

from dataclasses import dataclass, field

from cairn.core.limits import NAME_BYTES_MAX

# mypy cannot say "plain data or one of ours, recursively" without a cast at every step, so checks are by exact type.
Value = object

# A key is a word or a small tuple of words.
KEY_DEPTH_MAX = 8
KEY_PARTS_MAX = 256
KEY_WORD_MAX = NAME_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Name:
    """`module.name` of an allowed global."""

    text: str


@dataclass(frozen=True, slots=True)
class StorageRef:
    """A torch storage: `elements` elements of `dtype` in the record `key`."""

    key: str
    dtype: str
    elements: int


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A strided view into a storage; offset and strides count elements of `dtype`. Lies inside its storage."""

    storage: StorageRef
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpaqueTensor:
    """A tensor that is more than a strided view; `kind` says what, for people."""

    kind: str


@dataclass(eq=False, slots=True)
class Record:
    """An instance of an allowed class, not made: what it would be made from."""

    name: str
    arguments: tuple[Value, ...]
    state: Value = None


@dataclass(frozen=True, slots=True)
class FrozenKey:
    """A tuple, name or record as a key.

    Equality and hash go by `text`: strings hash with the process's secret seed, while Python's hash of a tuple of
    numbers is the same everywhere, so a file could hold a million keys that collide.
    """

    value: Value = field(compare=False)
    text: str


def key_text(value: Value) -> str | None:
    """A string that is the same for equal keys and different for others; `None` for what cannot be a key."""
    parts: list[str] = []
    return " ".join(parts) if _spell(value, parts, KEY_DEPTH_MAX) else None


def _spell(value: Value, parts: list[str], depth: int) -> bool:
    kind = type(value)
    if depth == 0 or len(parts) >= KEY_PARTS_MAX:
        return False
    if isinstance(value, (str, bytes)):
        parts.append(repr(value[:KEY_WORD_MAX]))
        return len(value) <= KEY_WORD_MAX
    if value is None or kind in (bool, float) or (isinstance(value, int) and abs(value) < 1 << 64):
        parts.append(repr(value))
        return True
    if isinstance(value, Name):
        parts.append(f"<{value.text}>")
        return True
    if isinstance(value, tuple):
        parts.append("(")
        spelled = all(_spell(item, parts, depth - 1) for item in value)
        parts.append(")")
        return spelled
    if isinstance(value, Record):
        parts.append(f"<{value.name}>")
        return _spell(value.arguments, parts, depth - 1) and _spell(value.state, parts, depth - 1)
    if isinstance(value, dict):  # the state of a record
        parts.append("{")
        spelled = all(_spell(key, parts, depth - 1) and _spell(item, parts, depth - 1) for key, item in value.items())
        parts.append("}")
        return spelled
    return False
