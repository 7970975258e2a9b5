"""Elements of every dtype as numbers of float64, and two runs of them compared. Numpy alone: it need not know a dtype.

Apart from `dtypes.py` for the sake of numpy, which few commands need.
"""

from functools import lru_cache
from math import isfinite
from typing import Any

import numpy as np

from cairn.manifests.delta import Delta, Norms, joined
from cairn.manifests.dtypes import BITS

Array = np.ndarray[Any, Any]
# Elements that are looked at together: 512 KiB as float64, which stay in a processor's cache.
_BLOCK_ELEMENTS = 1 << 16
# Of two small numbers in one byte the first is in the low half; which is which makes no difference to any sum.
_HALVES = ("float4_e2m1fn", "float4_e2m1fn_x2")
_INTEGERS = {
    **{f"uint{bits}": "u1" for bits in range(1, 9)}, **{f"int{bits}": "i1" for bits in range(1, 9)}, "bool": "u1",
    "uint16": "u2", "uint32": "u4", "uint64": "u8", "int16": "i2", "int32": "i4", "int64": "i8",
}  # fmt: skip
_FLOATS = {"float16": "f2", "float32": "f4", "float64": "f8"}
# Bits of exponent and mantissa, the exponent's bias, and which codes are no numbers.
_SMALL_FLOATS = {
    "float4_e2m1fn": (2, 1, 1, ""), "float4_e2m1fn_x2": (2, 1, 1, ""), "float8_e4m3fn": (4, 3, 7, "fn"),
    "float8_e5m2": (5, 2, 15, "ieee"), "float8_e4m3fnuz": (4, 3, 8, "fnuz"), "float8_e5m2fnuz": (5, 2, 16, "fnuz"),
    "float8_e8m0fnu": (8, 0, 127, "fnu"),
}  # fmt: skip

_NUMERIC = frozenset((*_INTEGERS, *_FLOATS, *_SMALL_FLOATS, "bfloat16", "complex32", "complex64", "complex128"))


def is_countable(dtype: str) -> bool:
    """Whether elements of a dtype can be told apart: those of 6 bits lie across bytes in no order that is agreed on."""
    return BITS[dtype] % 8 == 0 or dtype in _HALVES


def is_numeric(dtype: str) -> bool:
    """Whether the bits of an element are a number, without a scale or the like that stands elsewhere."""
    return dtype in _NUMERIC


def compare_elements(dtype: str, old: Array, new: Array) -> Delta:
    """Compare two contiguous arrays of one length, of integers of the elements' width (see `loader.boxes`).

    Args:
        dtype: one that is countable.
    """
    before, after = old.reshape(-1), new.reshape(-1)
    blocks = range(0, len(before), _BLOCK_ELEMENTS)
    with np.errstate(over="ignore", invalid="ignore"):
        parts = [_block(dtype, before[at : at + _BLOCK_ELEMENTS], after[at : at + _BLOCK_ELEMENTS]) for at in blocks]
    return joined(parts) if parts else Delta(norms=Norms() if is_numeric(dtype) else None)


def _block(dtype: str, old: Array, new: Array) -> Delta:
    if dtype in _HALVES:
        old, new = _halves(old), _halves(new)
    # Bits, since NaN differs from itself; numpy's widest integer is of 8 bytes.
    width = min(old.itemsize, 8)
    differing = (old.view(f"u{width}") != new.view(f"u{width}")).reshape(len(old), -1).any(axis=1)
    changed = int(differing.sum())
    if not is_numeric(dtype):
        return Delta(len(old), changed, None)
    before, after = numbers(dtype, old), numbers(dtype, new)
    (nan_old, inf_old), (nan_new, inf_new) = _not_finite(before), _not_finite(after)
    if nan_old or inf_old or nan_new or inf_new:
        finite_old, finite_new = np.isfinite(before), np.isfinite(after)
        difference = np.where(finite_old & finite_new, after - before, 0.0)
        before, after = np.where(finite_old, before, 0.0), np.where(finite_new, after, 0.0)
    elif dtype in ("int64", "uint64"):
        difference = _exact_distance(_INTEGERS[dtype], old, new)
    else:
        difference = after - before
    norms = Norms(_norm(before), _norm(after), _norm(difference), float(np.abs(difference).max(initial=0.0)))
    return Delta(len(old), changed, norms, nan_old, inf_old, nan_new, inf_new)


@np.errstate(invalid="ignore")  # which a signalling NaN is to some processors
def numbers(dtype: str, bits: Array) -> Array:
    """Elements as float64, or complex128. Integers beyond 2^53 are rounded.

    Args:
        bits: integers of the elements' width; of numbers of 4 bits, one a byte.
    """
    if dtype in _FLOATS or dtype in _INTEGERS:
        return bits.view(_FLOATS.get(dtype) or _INTEGERS[dtype]).astype(np.float64)
    if dtype in _SMALL_FLOATS:
        found: Array = _table(dtype)[bits]
        return found
    if dtype == "bfloat16":
        return (bits.view("u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype == "complex32":
        return bits.view("f2").astype(np.float64).view(np.complex128)
    return bits.view(f"c{bits.itemsize}").astype(np.complex128)


@lru_cache(maxsize=len(_SMALL_FLOATS))
def _table(dtype: str) -> Array:
    """The number of each code."""
    exponent_bits, mantissa_bits, bias, special = _SMALL_FLOATS[dtype]
    signed = special != "fnu"
    codes = np.arange(1 << (signed + exponent_bits + mantissa_bits))
    exponent, mantissa = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1), codes & ((1 << mantissa_bits) - 1)
    normal = (exponent > 0) | (not signed)
    significand = mantissa + normal * (1 << mantissa_bits)
    table: Array = np.ldexp(significand.astype(np.float64), np.where(normal, exponent, 1) - bias - mantissa_bits)
    if signed:
        negative = codes >> (exponent_bits + mantissa_bits) == 1
        table = np.where(negative, -table, table)
    if special == "ieee":
        top = exponent == (1 << exponent_bits) - 1
        table = np.where(top, np.where(mantissa == 0, np.copysign(np.inf, table), np.nan), table)
    elif special == "fnuz":
        table[len(table) // 2] = np.nan
    elif special == "fn":
        table[[len(table) // 2 - 1, -1]] = np.nan
    elif special == "fnu":
        table[-1] = np.nan
    return table


def _halves(data: Array) -> Array:
    return np.stack([data & 15, data >> 4], axis=1).reshape(-1)


def _not_finite(values: Array) -> tuple[int, int]:
    """How many are NaN, and how many infinite."""
    outside = len(values) - int(np.isfinite(values).sum())
    nan = int(np.isnan(values).sum()) if outside else 0
    return nan, outside - nan


def _exact_distance(kind: str, old: Array, new: Array) -> Array:
    """Absolute differences of 64-bit integers, which float64 cannot tell apart beyond 2^53."""
    before, after = old.view(kind), new.view(kind)
    up, down = after.view("u8") - before.view("u8"), before.view("u8") - after.view("u8")
    distance: Array = np.where(after >= before, up, down)
    return distance.astype(np.float64)


def _norm(values: Array) -> float:
    """L2 norm; scaled where squares leave float64's range."""
    parts = values.view(np.float64)
    total = float(np.square(parts).sum())
    if isfinite(total) and total > np.finfo(np.float64).tiny:
        return float(np.sqrt(total))
    largest = float(np.abs(parts).max(initial=0.0))
    return largest * float(np.sqrt(np.square(parts / largest).sum())) if largest and isfinite(largest) else largest
