"""Element types: torch's spelling and the width in bits.

Bytes are little-endian by definition. Types narrower than a byte are tiled as flat bytes.
"""

from cairn.core.errors import BadInput
from cairn.core.limits import TENSOR_BYTES_MAX, TENSOR_DIMS_MAX

BITS: dict[str, int] = {
    "bool": 8, "uint8": 8, "int8": 8, "uint16": 16, "int16": 16, "uint32": 32, "int32": 32, "uint64": 64, "int64": 64,
    "float16": 16, "bfloat16": 16, "float32": 32, "float64": 64,
    "complex32": 32, "complex64": 64, "complex128": 128,
    "float8_e4m3fn": 8, "float8_e5m2": 8, "float8_e4m3fnuz": 8, "float8_e5m2fnuz": 8, "float8_e8m0fnu": 8,
    # torch stores these unpacked, one element a byte
    "uint1": 8, "uint2": 8, "uint3": 8, "uint4": 8, "uint5": 8, "uint6": 8, "uint7": 8,
    "int1": 8, "int2": 8, "int3": 8, "int4": 8, "int5": 8, "int6": 8, "int7": 8,
    # two elements in one byte, counted as one element by torch
    "float4_e2m1fn_x2": 8,
    # safetensors counts these by element, packed
    "float4_e2m1fn": 4, "float6_e2m3fn": 6, "float6_e3m2fn": 6,
    "quint8": 8, "qint8": 8, "qint32": 32, "quint4x2": 8, "quint2x4": 8,
    "bits8": 8, "bits16": 16, "bits1x8": 8, "bits2x4": 8, "bits4x2": 8,
}  # fmt: skip

# Bytes to reverse on a big-endian host or file; a complex number is two reals.
SWAP_BYTES: dict[str, int] = {
    name: (bits // 16 if name.startswith("complex") else max(bits // 8, 1)) for name, bits in BITS.items()
}


def nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor, by checked arithmetic.

    Raises:
        BadInput: unknown dtype, too many or negative dimensions, a size over the limit or not of whole bytes.
    """
    bits = BITS.get(dtype)
    if bits is None:
        raise BadInput(f"dtype {dtype[:40]!r} is not known")
    if len(shape) > TENSOR_DIMS_MAX:
        raise BadInput(f"a shape of {len(shape)} dimensions is over the limit of {TENSOR_DIMS_MAX}")
    total = bits
    for length in shape:
        if type(length) is not int or length < 0:
            raise BadInput(f"dimension {length!r} is not a whole number from 0 up")
        total *= length
    # Python integers do not wrap; an absurd dimension next to a zero one is refused too.
    if total > TENSOR_BYTES_MAX * 8 or any(length > TENSOR_BYTES_MAX for length in shape):
        raise BadInput(f"shape {list(shape)[:8]} is larger than any tensor")
    if total % 8:
        raise BadInput(f"shape {list(shape)[:8]} of {bits}-bit elements does not fill whole bytes")
    return total // 8
