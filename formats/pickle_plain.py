"""Rules for Python's own types, as protocols 2 to 5 spell them."""

from collections.abc import Iterable

from cairn.formats.pickle_values import FrozenKey, Name, Record, Value, key_text
from cairn.formats.pickle_vocabulary import (
    DICT_ITEM_COST,
    Arguments,
    Charge,
    Rule,
    Vocabulary,
    wrong_arguments,
)
from cairn.formats.refusal import malformed

# Python's hash of an integer is the integer modulo 2**61 - 1: within 64 bits at most 9 share one.
_KEY_INT_BITS = 63


def as_key(value: Value, charge: Charge) -> Value:
    """The value as it may stand in a dict or set.

    Raises:
        BadInput: it has no fixed identity (a list, a tensor), or is too large or nested for a key.
    """
    if value is None or isinstance(value, (str, bytes, bool, float)):
        return value
    if isinstance(value, int):
        if -(1 << _KEY_INT_BITS) <= value < 1 << _KEY_INT_BITS:
            return value
        raise malformed(f"an integer key is over {_KEY_INT_BITS + 1} bits")
    if isinstance(value, (tuple, Name, Record)):
        text = key_text(value)
        if text is not None:
            charge(DICT_ITEM_COST + len(text))
            return FrozenKey(value, text)
    raise malformed(f"a {type(value).__name__} like this one cannot be a key or a member of a set")


def fill(target: dict[Value, Value], pairs: Iterable[tuple[Value, Value]], charge: Charge) -> None:
    """Set items one by one; of equal keys the last value stays, as in Python."""
    for key, value in pairs:
        charge(DICT_ITEM_COST)
        target[as_key(key, charge)] = value


def _mapping(name: str) -> Rule:
    """OrderedDict and Counter become a dict: the order is kept, and nothing else of them matters here."""

    def call(arguments: Arguments, charge: Charge) -> Value:
        result: dict[Value, Value] = {}
        if arguments:
            given = arguments[0]
            if len(arguments) > 1 or not isinstance(given, (dict, list)):
                raise wrong_arguments(name, "a dict or a list of pairs")
            if isinstance(given, dict):
                charge(DICT_ITEM_COST * len(given))
                result.update(given)
            else:
                fill(result, _pairs(given, name), charge)
        return result

    return Rule(call, is_class=True)


def _pairs(items: list[Value], name: str) -> Iterable[tuple[Value, Value]]:
    for item in items:
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise wrong_arguments(name, "a dict or a list of pairs")
        yield item[0], item[1]


def _set(arguments: Arguments, charge: Charge) -> Value:
    return set(_members(arguments, charge))


def _frozenset(arguments: Arguments, charge: Charge) -> Value:
    return frozenset(_members(arguments, charge))


def _members(arguments: Arguments, charge: Charge) -> list[Value]:
    if not arguments:
        return []
    given = arguments[0]
    if len(arguments) > 1 or not isinstance(given, (list, tuple)):
        raise wrong_arguments("set", "one list")
    charge(DICT_ITEM_COST * len(given))
    return [as_key(item, charge) for item in given]


def _encode(arguments: Arguments, charge: Charge) -> bytes:
    """How protocol 2 spells bytes: text with one character a byte."""
    match arguments:
        case (str(text), "latin1" | "latin-1"):
            charge(len(text))
            try:
                return text.encode("latin-1")
            except UnicodeEncodeError:
                raise malformed("_codecs.encode: a character does not fit one byte") from None
    raise wrong_arguments("_codecs.encode", "a text and 'latin1'")


def _bytes(arguments: Arguments, charge: Charge) -> Value:
    if arguments:
        raise wrong_arguments("bytes", "none")
    return b""


def _bytearray(arguments: Arguments, charge: Charge) -> Value:
    match arguments:
        case ():
            return bytearray()
        case (bytes(content),):
            charge(len(content))
            return bytearray(content)
    return bytearray(_encode(arguments, charge))


def _complex(arguments: Arguments, charge: Charge) -> Value:
    match arguments:
        case (float(real), float(imaginary)):
            return complex(real, imaginary)
    raise wrong_arguments("complex", "two floats")


PLAIN: Vocabulary = {
    "collections.OrderedDict": _mapping("collections.OrderedDict"),
    "collections.Counter": _mapping("collections.Counter"),
    "builtins.set": Rule(_set, is_class=True),
    "builtins.frozenset": Rule(_frozenset, is_class=True),
    "builtins.bytes": Rule(_bytes),
    "builtins.bytearray": Rule(_bytearray),
    "builtins.complex": Rule(_complex),
    "_codecs.encode": Rule(_encode),
}
