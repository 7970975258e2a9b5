"""Zip archives: where members lie, and every way in which an archive can lie."""

import contextlib
import io
import stat
import struct
import tracemalloc
import warnings
import zipfile
import zlib
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cairn.core.errors import BadInput
from cairn.core.limits import MIB, ZIP_INFLATED_BYTES_MAX
from cairn.formats import zip_reader
from cairn.formats.zip_reader import ZipArchive, open_zip
from tests.formats.support import BytesSource, torch_file

CONTENT = {"archive/data.pkl": b"\x80\x02N.", "archive/data/0": b"0123456789", "archive/empty": b"", "archive/ü": b"x"}


def zipped(members: dict[str, bytes] | None = None, compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # duplicate names
        for name, data in (CONTENT if members is None else members).items():
            archive.writestr(zipfile.ZipInfo(name), data, compression)
    return buffer.getvalue()


def opened(content: bytes) -> ZipArchive:
    return open_zip(BytesSource(content))


def refusal(content: bytes) -> str:
    with pytest.raises(BadInput) as caught:
        opened(content)
    assert caught.value.hint, "an error says what to do next"
    return caught.value.message


def patched(content: bytes, offset: int, new: bytes) -> bytes:
    offset += len(content) if offset < 0 else 0
    return content[:offset] + new + content[offset + len(new) :]


def directory(content: bytes) -> int:
    """Offset of the central directory, for archives without zip64."""
    return int(struct.unpack_from("<I", content, len(content) - 6)[0])


def renamed(name: str) -> bytes:
    """An archive whose only member has exactly these bytes for a name, which zipfile would not write."""
    raw = name.encode()
    content = zipped({"m" * len(raw): b"data"})
    return content.replace(b"m" * len(raw), raw)


def test_zip_members_lie_where_it_says() -> None:
    for content in (zipped(), torch_file({"x": 1}), zipped({"a": b""})):
        archive = opened(content)
        with zipfile.ZipFile(io.BytesIO(content)) as reference:
            assert list(archive.members) == reference.namelist()
            for name, member in archive.members.items():
                assert content[member.offset : member.offset + member.size] == reference.read(name)
                assert archive.read(name, MIB) == reference.read(name)
                assert not member.compressed


def test_zip_compressed_members_are_unfolded() -> None:
    members = {"a": b"x" * 5000, "b": b"y", "empty": b""}
    content = zipped(members, zipfile.ZIP_DEFLATED)
    archive = opened(content)
    assert {name: archive.read(name, MIB) for name in members} == members
    assert all(member.compressed for member in archive.members.values())
    with pytest.raises(BadInput, match="over the limit of 4999"):
        archive.read("a", 4999)
    with pytest.raises(BadInput, match="no member 'c'"):
        archive.read("c", 1)


def test_zip_folders_and_names() -> None:
    members = {"a/": b"", "a/b.c": b"1", "a/b..c": b"2", "...": b"3", "-": b"4", "ü": b"5"}
    assert list(opened(zipped(members)).members) == list(members)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../x", "climbs out"),
        ("a/../../x", "climbs out"),
        ("a/..", "climbs out"),
        ("..", "climbs out"),
        ("\\..\\x", "backslash"),
        ("a\\b", "backslash"),
        ("/etc/passwd", "absolute"),
        ("//x", "absolute"),
        ("C:/x", "drive"),
        ("C:x", "drive"),
        ("a//b", "empty or '.' part"),
        ("./a", "empty or '.' part"),
        ("a/./b", "empty or '.' part"),
        ("a\0b", "NUL"),
        ("a\nb", "control character"),
        ("a\x1b[2J", "control character"),
    ],
)
def test_X17_names_stay_inside(name: str, message: str) -> None:
    content = renamed(name)
    assert message in refusal(content)
    assert name not in refusal(content) or name.isprintable(), "escaped in the message"


def test_X17_empty_and_long_names() -> None:
    content = zipped({"m": b""})
    at = directory(content)
    assert "empty or '.' part" in refusal(zipped({"": b""}))
    assert "at most 16384 bytes" in refusal(zipped({"m" * 20_000: b""}))
    assert "name is not UTF-8" in refusal(patched(content, at + 46, b"\xff"))


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK])
def test_X17_links_and_devices(kind: int) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = zipfile.ZipInfo("link")
        info.create_system, info.external_attr = 3, (kind | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    assert "link or device" in refusal(buffer.getvalue())


def test_X17_duplicates() -> None:
    content = zipped({"a": b"1", "b": b"2"})
    assert "duplicate archive member 'a'" in refusal(content.replace(b"b", b"a"))


# --- Bombs ------------------------------------------------------------------------------------


def claiming(content: bytes, size: int) -> bytes:
    """The archive with another unfolded size for its first member."""
    return patched(content, directory(content) + 24, struct.pack("<I", size))


def test_X20_budget_is_for_the_whole_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    members = {f"m{i}": bytes(1000) for i in range(10)}
    monkeypatch.setattr(zip_reader, "ZIP_INFLATED_BYTES_MAX", 9_999)
    assert "unfold to more than 9999 bytes all together" in refusal(zipped(members, zipfile.ZIP_DEFLATED))
    assert len(opened(zipped(members)).members) == 10, "stored members unfold to nothing"
    monkeypatch.setattr(zip_reader, "ZIP_INFLATED_BYTES_MAX", 10_000)
    assert len(opened(zipped(members, zipfile.ZIP_DEFLATED)).members) == 10


def test_X05_zip_bomb_is_refused_before_it_is_unfolded() -> None:
    content = claiming(zipped({"bomb": bytes(32 * MIB)}, zipfile.ZIP_DEFLATED), ZIP_INFLATED_BYTES_MAX + 1)
    tracemalloc.start()
    try:
        assert "unfold to more than" in refusal(content)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_X05_zip_bomb_that_lies_about_its_size() -> None:
    archive = opened(claiming(zipped({"bomb": bytes(32 * MIB)}, zipfile.ZIP_DEFLATED), 10))
    tracemalloc.start()
    try:
        with pytest.raises(BadInput, match="does not unfold to the 10 bytes"):
            archive.read("bomb", MIB)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_zip_damaged_deflate() -> None:
    content = zipped({"a": b"abcdefgh" * 100}, zipfile.ZIP_DEFLATED)
    offset = opened(content).members["a"].offset
    with pytest.raises(BadInput, match="damaged"):
        opened(patched(content, offset, b"\xff\xff\xff")).read("a", MIB)
    with pytest.raises(BadInput, match="does not unfold to the 801 bytes"):
        opened(claiming(content, 801)).read("a", MIB)


# --- Lies -------------------------------------------------------------------------------------

ONE = zipped({"member": b"0123456789"})
AT = directory(ONE)

DEFECTS: list[tuple[Callable[[], bytes], str]] = [
    (lambda: b"", "does not start with a member"),
    (lambda: b"PK\x05\x06" + bytes(18), "does not start with a member"),  # no members
    (lambda: b"x" * 100, "does not start with a member"),
    (lambda: b"x" + ONE, "does not start with a member"),
    (lambda: ONE[:-1], "does not end with its end record"),
    (lambda: ONE + b"x", "does not end with its end record"),
    (lambda: ONE + ONE, "claims bytes"),
    (lambda: patched(ONE, -2, b"\1\0"), "has a comment"),
    (lambda: patched(ONE, -2, b"\4\0") + b"note", "has a comment or a tail"),
    (lambda: patched(ONE, -18, b"\1\0"), "several disks"),
    (lambda: patched(ONE, -16, b"\1\0"), "several disks"),
    (lambda: patched(ONE, -14, b"\2\0"), "several disks"),
    (lambda: patched(ONE, -14, b"\0\0\0\0"), "follow the last of 0 entries"),
    (lambda: patched(ONE, -14, b"\2\0\2\0"), "cannot hold 2 members"),
    (lambda: patched(ONE, -10, struct.pack("<I", 1 << 30)), "over the limit"),
    (lambda: patched(ONE, -10, struct.pack("<I", 10)), "claims bytes"),
    (lambda: patched(ONE, -6, struct.pack("<I", AT + 1)), "claims bytes"),
    (lambda: patched(ONE, AT, b"XX"), "entry 0 of the zip directory is damaged"),
    (lambda: patched(ONE, AT + 8, b"\1"), "is encrypted"),
    (lambda: patched(ONE, AT + 10, b"\x0c"), "compression method 12 is neither"),
    (lambda: patched(ONE, AT + 20, struct.pack("<I", 9)), "is stored, yet 9 bytes stand for 10"),
    (lambda: patched(ONE, AT + 20, struct.pack("<II", 5000, 5000)), "but members end at"),
    (lambda: patched(ONE, AT + 20, b"\xff" * 8), "needs a zip64 field"),
    (lambda: patched(ONE, AT + 28, b"\5"), "its own header contradicts the directory"),
    (lambda: patched(ONE, AT + 28, b"\xff\xff"), "is damaged"),
    (lambda: patched(ONE, AT + 30, b"\1"), "is damaged"),
    (lambda: patched(ONE, AT + 34, b"\1"), "lies on another disk"),
    (lambda: patched(ONE, AT + 42, struct.pack("<I", 1)), "no member starts at byte 1"),
    (lambda: patched(ONE, AT + 42, struct.pack("<I", AT)), "outside the members"),
    (lambda: patched(ONE, AT + 46, b"M"), "its own header contradicts the directory"),
    (lambda: patched(ONE, 8, b"\x08"), "its own header contradicts the directory"),
    (lambda: patched(ONE, 26, b"\5"), "its own header contradicts the directory"),
    (lambda: patched(ONE, 28, b"\xff\xff"), "but members end at"),
    (lambda: renamed("a/"), "a folder with content"),
]


@pytest.mark.parametrize(("make", "message"), DEFECTS, ids=[message for _, message in DEFECTS])
def test_zip_defects(make: Callable[[], bytes], message: str) -> None:
    assert message in refusal(make())


def test_zip_padded_deflate() -> None:
    """A megabyte of empty blocks that unfold to nothing."""
    padded = zlib.compressobj(9, zlib.DEFLATED, -15)
    stream = b"\x00\x00\x00\xff\xff" * (MIB // 5) + padded.compress(b"x") + padded.flush()
    content = zipped({"a": stream})
    at = directory(content)
    content = patched(patched(content, 8, b"\x08"), at + 10, b"\x08")
    with pytest.raises(BadInput, match="is padded"):
        opened(patched(content, at + 24, struct.pack("<I", 1))).read("a", MIB)


def test_zip_overlapping_members() -> None:
    """Two entries with the same bytes: the way to unfold one member a million times."""
    inner = zipped({"b": b"22"})
    content = zipped({"a": inner[: directory(inner)], "b": b"22"})
    second = content.index(b"PK\x01\x02", content.index(b"PK\x01\x02") + 1)
    inside = content.index(b"PK\x03\x04", 1)
    assert "archive members 'a' and 'b' overlap" in refusal(patched(content, second + 42, struct.pack("<I", inside)))


def test_zip_too_many_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zip_reader, "ZIP_MEMBERS_MAX", 3)
    assert "a zip directory of 4 members" in refusal(zipped())


# --- zip64 ------------------------------------------------------------------------------------

WIDE = torch_file({"x": 1})  # torch always writes the zip64 records
END_64 = len(WIDE) - 22 - 20 - 56


@pytest.mark.parametrize(
    ("offset", "new", "message"),
    [
        (END_64, b"XX", "zip64 end record is damaged"),
        (END_64 + 4, b"\1", "zip64 end record is damaged"),
        (END_64 + 16, b"\1", "contradict"),
        (END_64 + 24, b"\x63", "contradict"),
        (END_64 + 40, b"\x63", "contradict"),
        (END_64 + 48, b"\x63", "contradict"),
        (END_64 + 56, b"XX", "claims bytes"),
        (END_64 + 60, b"\1", "does not point at the record before it"),
        (END_64 + 64, b"\1", "does not point at the record before it"),
        (END_64 + 72, b"\2", "does not point at the record before it"),
    ],
)
def test_zip64_defects(offset: int, new: bytes, message: str) -> None:
    assert message in refusal(patched(WIDE, offset, new))


def test_zip64_saturated_fields() -> None:
    """An archive of a few bytes in which every field that can be is moved to its wide form."""
    local = b"PK\x03\x04" + struct.pack("<5H3I2H", 45, 0, 0, 0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF, 1, 20) + b"a"
    local += struct.pack("<2H2Q", 1, 16, 3, 3) + b"123"
    wide = struct.pack("<2H3QI", 1, 28, 3, 3, 0, 0)
    noise = struct.pack("<2H", 0x5455, 3) + b"xyz"
    entry = b"PK\x01\x02" + struct.pack(
        "<6H3I5H2I", 45, 45, 0, 0, 0, 0, 0, *[0xFFFFFFFF] * 2, 1, len(noise + wide), 0, 0xFFFF, 0, 0, 0xFFFFFFFF
    )
    entry += b"a" + noise + wide
    end_64 = b"PK\x06\x06" + struct.pack("<Q2H2I4Q", 44, 45, 45, 0, 0, 1, 1, len(entry), len(local))
    locator = b"PK\x06\x07" + struct.pack("<IQI", 0, len(local + entry), 1)
    end = b"PK\x05\x06" + struct.pack("<4H2IH", *[0xFFFF] * 4, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    content = local + entry + end_64 + locator + end
    archive = opened(content)
    assert archive.read("a", 10) == b"123"
    # The same room, but the last number has become a field of its own.
    assert "zip64 field is too short" in refusal(
        content.replace(wide, struct.pack("<2H2QH2H6x", 1, 16, 3, 3, 9, 8, 0)[:32])
    )


# --- Anything at all --------------------------------------------------------------------------


@settings(max_examples=600)
@given(st.data())
def test_zip_mutations(data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from([zipped(), zipped(None, zipfile.ZIP_DEFLATED), WIDE])))
    start = data.draw(st.sampled_from([0, content.index(b"PK\x01\x02")]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(start, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :][: data.draw(st.integers(0, 9))]
    try:
        archive = opened(bytes(content))
        spans = sorted((member.offset, member.offset + member.stored_bytes) for member in archive.members.values())
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
        for name in archive.members:
            archive.read(name, MIB)
    except BadInput as error:
        assert str(error)


@settings(max_examples=200)
@given(st.binary(max_size=120))
def test_zip_random_bytes(content: bytes) -> None:
    with contextlib.suppress(BadInput):
        opened(b"PK\x03\x04" + content + b"PK\x05\x06" + bytes(18))
