"""Rules for numpy scalars, dtypes and arrays: read past as records, and made anew only where their values are wanted.

Training states hold random-number states and metrics as numpy values.
"""

from typing import Any

from cairn.formats.pickle_values import Record, Value
from cairn.formats.pickle_vocabulary import MENTION, Rule, Vocabulary, record, wrong_arguments

# numpy 2 moved its core; pickles of both are about.
_CORES = ("numpy.core", "numpy._core")


def _vocabulary() -> Vocabulary:
    rules: dict[str, Rule] = {"numpy.ndarray": MENTION, "numpy.dtype": record("numpy.dtype")}
    for core in _CORES:
        for function in ("multiarray.scalar", "multiarray._reconstruct", "numeric._frombuffer"):
            rules[f"{core}.{function}"] = record(f"{core}.{function}")
    return rules


NUMPY: Vocabulary = _vocabulary()

# Numbers and booleans of fixed size; objects and structures have no plain bytes.
_KINDS = "biufc"


def scalar_of(value: Record) -> Any:
    """The number of a pickled numpy scalar.

    Raises:
        BadInput: it is none.
    """
    match value.arguments:
        case (Record() as dtype, bytes(content)):
            return _numbers(content, dtype, ())[()]
    raise wrong_arguments(value.name, "a dtype and bytes")


def array_of(value: Record) -> Any:
    """The array of a pickled numpy array.

    Raises:
        BadInput: it is none of numbers, or its bytes are not those of its shape.
    """
    match value.arguments, value.state:
        case (_, (int(), tuple(shape), Record() as dtype, False, bytes(content))):
            return _numbers(content, dtype, shape)
        case ((bytes(content) | bytearray(content), Record() as dtype, tuple(shape), "C"), None):
            return _numbers(bytes(content), dtype, shape)
    raise wrong_arguments(value.name, "what an array of numbers in C order needs")


def _numbers(content: bytes, dtype: Record, shape: tuple[Value, ...]) -> Any:
    import numpy as np

    spelled = dtype.arguments[0] if dtype.arguments else None
    swapped = isinstance(dtype.state, tuple) and dtype.state[1:2] == (">",)
    if not isinstance(spelled, str) or spelled[:1] not in _KINDS:
        raise wrong_arguments("numpy.dtype", "the name of a type of numbers")
    try:
        kind = np.dtype(spelled).newbyteorder(">" if swapped else "<")
        numbers = np.frombuffer(content, kind) if content else np.empty(0, kind)
        return numbers.reshape([int(n) for n in shape if isinstance(n, int)]).copy()
    except (ValueError, TypeError) as error:
        raise wrong_arguments("a numpy array", f"bytes of its shape ({error})") from None
