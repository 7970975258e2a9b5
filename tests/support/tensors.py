"""Small safetensors files, written by hand so that a test says every byte."""

import json
import struct
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

_TAGS = {
    "float32": "F32",
    "float16": "F16",
    "float64": "F64",
    "int64": "I64",
    "int32": "I32",
    "uint8": "U8",
    "int8": "I8",
}

Array = npt.NDArray[np.generic]


def safetensors(tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> bytes:
    """A file that holds the arrays in the order given."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    data = b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": _TAGS[array.dtype.name], "shape": list(array.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def weights(seed: int, *shape: int) -> npt.NDArray[np.float32]:
    """Random weights."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)
