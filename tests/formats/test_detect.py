"""The parser for a file follows from its name, and for torch from its content too."""

import pytest

from cairn.formats.detect import detect
from tests.formats.support import torch_file

ZIP, PICKLE, ELSE = b"PK\x03\x04....", b"\x80\x02\x8a\x0a", b"\x00\x00\x00\x00"


@pytest.mark.parametrize(
    ("name", "head", "expected"),
    [
        ("model.safetensors", ELSE, "safetensors"),
        ("a/b/MODEL.SAFETENSORS", b"", "safetensors"),
        ("model.safetensors", ZIP, "safetensors"),
        ("model.safetensors.index.json", b"{", "safetensors-index"),
        ("pytorch_model.bin.index.json", b"{", "safetensors-index"),
        ("index.json", b"{", None),
        ("config.json", b"{", None),
        ("x.pt", ZIP, "torch"),
        ("x.pth", ZIP, "torch"),
        ("pytorch_model.bin", ZIP, "torch"),
        ("x.ckpt", ZIP, "torch"),
        ("x.pt", PICKLE, "torch"),
        ("x.bin", b"\x80\x05\x95", "torch"),
        ("x.bin", b"\x80\x06", None),
        ("x.bin", b"\x80", None),
        ("x.bin", ELSE, None),
        ("x.pt", b"PK\x05\x06", None),
        ("x.pt", b"", None),
        ("x.zip", ZIP, None),
        ("x.pkl", PICKLE, None),
        ("safetensors", ELSE, None),
    ],
)
def test_detect(name: str, head: bytes, expected: str | None) -> None:
    assert detect(name, head) == expected


def test_detect_what_torch_writes() -> None:
    assert detect("x.pt", torch_file({})[:16]) == "torch"
    assert detect("x.pt", torch_file({}, _use_new_zipfile_serialization=False)[:16]) == "torch"
