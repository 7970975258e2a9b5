"""The data: a folder with one safetensors file of random normal bfloat16 weights, shaped like a Llama's layers.

`python benchmarks/sample.py FOLDER BYTES` writes it. Beside the weights lies a small file that is newer: borg
remembers only files that are older than the newest one it has seen.
"""

import json
import os
import struct
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np

WEIGHTS = "weights.safetensors"
_SEED = 20240607
_ITEM = 2
# Hidden size, feed-forward size, key and value size: Llama 3 8B; and a quarter of it for small files.
_LARGE, _SMALL = (4096, 14336, 1024), (1024, 3584, 256)
_LARGE_FROM_BYTES = 512 << 20
# The header is padded to this size, so that the file has exactly the size asked for.
_HEADER_BYTES = 64 << 10


def shapes(size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of tensors that take `size` bytes: whole layers, then an embedding that fills the rest."""
    hidden, wide, narrow = _LARGE if size >= _LARGE_FROM_BYTES else _SMALL
    layer = {
        "input_layernorm": (hidden,),
        "mlp.down_proj": (hidden, wide),
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "post_attention_layernorm": (hidden,),
        "self_attn.k_proj": (narrow, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.v_proj": (narrow, hidden),
    }
    layer_bytes = sum(prod(shape) * _ITEM for shape in layer.values())
    layers = size // layer_bytes
    rows, rest = divmod(size - layers * layer_bytes, hidden * _ITEM)
    if rows:
        yield "model.embed_tokens.weight", (rows, hidden)
    for number in range(layers):
        for name, shape in layer.items():
            yield f"model.layers.{number:02d}.{name}.weight", shape
    if rest:
        yield "model.norm.weight", (rest // _ITEM,)


def normal_bfloat16(random: np.random.Generator, count: int) -> np.ndarray:
    """So many normal values of standard deviation 0.02 as the bits of bfloat16, rounded to nearest even."""
    bits = (random.standard_normal(count, dtype=np.float32) * np.float32(0.02)).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def write_sample(folder: Path, size: int) -> None:
    """Write the folder; the weights file has exactly `size` bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    tensors, at = list(shapes(size - 8 - _HEADER_BYTES)), 0
    for name, shape in tensors:
        end = at + prod(shape) * _ITEM
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    random = np.random.default_rng(_SEED)
    folder.mkdir(parents=True)
    with (folder / WEIGHTS).open("wb") as file:
        file.write(struct.pack("<Q", _HEADER_BYTES) + text.ljust(_HEADER_BYTES))
        for _, shape in tensors:
            for start in range(0, prod(shape), 1 << 22):
                file.write(normal_bfloat16(random, min(1 << 22, prod(shape) - start)).data)
        file.flush()
        os.fsync(file.fileno())
    (folder / "notes.txt").write_text("Random weights, for measuring.\n")


if __name__ == "__main__":
    write_sample(Path(sys.argv[1]), int(sys.argv[2]))
