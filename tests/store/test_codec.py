"""Encodings of chunks: what comes back, and what a frame that lies does not get."""

import struct

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from cairn.core.errors import IntegrityError
from cairn.store import codec
from cairn.store.codec import RAW, ZSTD, CodecPolicy
from cairn.store.fills import fill_digest, fill_of

PLANES = {2: 2, 4: 3, 8: 4}


def compressible(length: int) -> bytes:
    return (b"0123456789abcdef" * (length // 16 + 1))[:length]


@given(st.binary(max_size=3000) | st.integers(0, 5000).map(compressible), st.sampled_from([1, 2, 3, 4, 8, 16]))
def test_what_is_encoded_comes_back(data: bytes, width: int) -> None:
    for policy in CodecPolicy:
        code, encoded = codec.encode(policy, data, width)
        assert codec.decode(code, encoded, len(data), "it") == data
        assert len(encoded) <= len(data)


@pytest.mark.parametrize("width", PLANES)
def test_weights_gain_by_byte_planes(width: int) -> None:
    draw = np.random.default_rng(0).standard_normal(200_000) / 50
    # bfloat16 is the upper half of float32.
    values = draw.astype(np.float32).view(np.uint16)[1::2] if width == 2 else draw.astype(f"f{width}")
    data = values.tobytes()
    code, encoded = codec.encode(CodecPolicy.ZSTD, data, width)
    _, flat = codec.encode(CodecPolicy.ZSTD, data, 1)
    assert code == PLANES[width]
    assert len(encoded) < 0.97 * len(data)
    assert len(encoded) < len(flat)
    assert codec.decode(code, encoded, len(data), "it") == data


def test_planes_put_first_bytes_first() -> None:
    data = b"".join(struct.pack("<H", 0x4100 + number % 7) for number in range(4000))
    code, encoded = codec.encode(CodecPolicy.ZSTD, data, 2)
    assert zstandard.ZstdDecompressor().decompress(encoded)[4000:] == b"\x41" * 4000
    assert code == 2


@pytest.mark.parametrize("data", [np.random.default_rng(1).bytes(100_000), compressible(511)], ids=["noise", "short"])
def test_what_gains_nothing_stays_raw(data: bytes) -> None:
    code, encoded = codec.encode(CodecPolicy.ZSTD, data, 1)
    assert (code, encoded) == (RAW, data)


def test_a_length_that_no_element_divides_has_no_planes() -> None:
    code, encoded = codec.encode(CodecPolicy.ZSTD, compressible(4001), 4)
    assert code == ZSTD
    assert codec.decode(code, encoded, 4001, "it") == compressible(4001)


# --- Frames that lie --------------------------------------------------------------------------

LENGTH = 1000
FRAME = zstandard.ZstdCompressor().compress(compressible(LENGTH))
BOMB = zstandard.ZstdCompressor().compress(bytes(64 << 20))


def without_size() -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(compressible(LENGTH))


def claiming(frame: bytes, length: int) -> bytes:
    """The bomb's frame with another content size in its header."""
    old = zstandard.get_frame_parameters(frame).content_size
    at = frame.index(struct.pack("<I", old))
    return frame[:at] + struct.pack("<I", length) + frame[at + 4 :]


LIES = {
    "a bomb that tells its size": BOMB,
    "a bomb that hides its size": claiming(BOMB, LENGTH),
    "no size": without_size(),
    "another size": zstandard.ZstdCompressor().compress(compressible(LENGTH + 1)),
    "cut": FRAME[:-3],
    "head only": FRAME[:6],
    "nothing": b"",
    "no frame": b"\0" * 40,
    "a frame to skip": struct.pack("<II", 0x184D2A50, LENGTH) + bytes(LENGTH),
    "a bad block": FRAME[:9] + b"\xff" * 8 + FRAME[17:],
}


@pytest.mark.parametrize("code", [ZSTD, *PLANES.values()])
@pytest.mark.parametrize("frame", LIES.values(), ids=LIES)
def test_a_frame_that_lies_is_refused_within_bounds(frame: bytes, code: int) -> None:
    with pytest.raises(IntegrityError, match="chunk x"):
        codec.decode(code, frame, LENGTH, "chunk x")


@pytest.mark.parametrize(("code", "length"), [(2, 1001), (3, 1002), (4, 1004)])
def test_planes_of_a_length_that_is_no_multiple_are_refused(code: int, length: int) -> None:
    frame = zstandard.ZstdCompressor().compress(compressible(length))
    assert codec.decode(ZSTD, frame, length, "it") == compressible(length)
    with pytest.raises(IntegrityError):
        codec.decode(code, frame, length, "it")


@pytest.mark.parametrize("code", [5, 17, 255])
def test_an_unknown_encoding_is_refused(code: int) -> None:
    with pytest.raises(IntegrityError, match=f"encoding {code}"):
        codec.decode(code, FRAME, LENGTH, "it")


@pytest.mark.parametrize("length", [0, LENGTH - 1, LENGTH + 1])
def test_raw_bytes_have_the_length_that_is_said(length: int) -> None:
    with pytest.raises(IntegrityError):
        codec.decode(RAW, bytes(LENGTH), length, "it")


# --- Fills ------------------------------------------------------------------------------------


@given(st.integers(0, 255), st.sampled_from([1, 2, 4095, 4096, 4097, 10_000]))
def test_one_repeated_byte_is_a_sentinel(byte: int, length: int) -> None:
    digest = fill_digest(memoryview(bytes([byte]) * length))
    assert digest is not None
    assert fill_of(digest) == byte


@pytest.mark.parametrize("at", [0, 1, 4095, 4096, 9_999])
def test_one_other_byte_is_no_fill(at: int) -> None:
    data = bytearray(10_000)
    data[at] = 1
    assert fill_digest(data) is None


def test_nothing_is_no_fill_and_a_real_digest_is_none() -> None:
    assert fill_digest(b"") is None
    assert fill_of(fill_digest(b"\7") or pytest.fail("no sentinel")) == 7
