"""Zip archives of strangers: where each member lies, and a bounded way to read one.

Format: PKWARE APPNOTE 6.3.10, sections 4.3-4.5. Stricter than zip tools, because a file that two readers understand
differently is how content slips past a check: the archive must fill the file from its first byte to its last, the
directory and the members' own headers must agree, and nothing may overlap. Multi-disk, encrypted and commented archives
are refused. CRCs are not compared: torch may write none, and the bytes go into the store as they are.
"""

import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from cairn.core.errors import BadInput
from cairn.core.limits import KIB, MIB, ZIP_INFLATED_BYTES_MAX, ZIP_MEMBERS_MAX
from cairn.formats.parsed import Source
from cairn.formats.refusal import malformed, shown
from cairn.formats.safe_names import check_member_name

# The directory is held in memory, and about three times its size in members; 32 MiB names 300,000 tensors, a little
# more than a pickle of the allowed size describes.
ZIP_DIRECTORY_BYTES_MAX = 32 * MIB

# A deflate stream may hold any number of empty blocks. Honest ones add 5 bytes per 64 KiB: 20 KiB for the largest.
DEFLATE_OVERHEAD_BYTES_MAX = 64 * KIB

MEMBER_MAGIC = b"PK\x03\x04"
_STORED, _DEFLATED = 0, 8
_ENCRYPTED_FLAG = 0x1
_ZIP64_EXTRA = 1
_FULL_16, _FULL_32 = 0xFFFF, 0xFFFFFFFF
_UNIX_FILE_KINDS = (0, stat.S_IFREG, stat.S_IFDIR)

_END = struct.Struct("<4s4H2IH")
_END_64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR_64 = struct.Struct("<4sIQI")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")


@dataclass(frozen=True, slots=True)
class ZipMember:
    """One member.

    Args:
        name: checked relative path; that of a folder ends in '/'.
        offset: byte offset in the file of its (possibly compressed) data.
        stored_bytes: bytes there.
        size: bytes of its content.
        compressed: whether the two differ in meaning.
    """

    name: str
    offset: int
    stored_bytes: int
    size: int
    compressed: bool


@dataclass(frozen=True, slots=True)
class ZipArchive:
    """The members of one archive by name, in the order of its directory."""

    source: Source
    members: dict[str, ZipMember] = field(repr=False)

    def read(self, name: str, bytes_max: int) -> bytes:
        """The content of one member.

        Raises:
            BadInput: absent, over `bytes_max`, or not of the size that the directory states.
        """
        member = self.members.get(name)
        if member is None:
            raise malformed(f"the archive has no member {shown(name)}")
        if member.size > bytes_max:
            raise malformed(f"archive member {shown(name)} has {member.size} bytes, over the limit of {bytes_max}")
        if member.stored_bytes > member.size + DEFLATE_OVERHEAD_BYTES_MAX:
            raise malformed(f"archive member {shown(name)} is padded: {member.stored_bytes} bytes for {member.size}")
        stored = self.source.read_at(member.offset, member.stored_bytes)
        return _inflate(stored, member) if member.compressed else stored


@dataclass(frozen=True, slots=True)
class _Entry:
    """A directory entry: what it claims, before the member's own header is compared."""

    raw_name: bytes
    name: str
    header_offset: int
    stored_bytes: int
    size: int
    method: int


def open_zip(source: Source) -> ZipArchive:
    """Read the directory and every member's header, and check that together they make one sound archive.

    Raises:
        BadInput: not a zip archive, damaged, hostile or over a limit; each defect has its own message.
    """
    count, directory_offset, directory_bytes = _find_directory(source)
    directory = source.read_at(directory_offset, directory_bytes)
    members: dict[str, ZipMember] = {}
    spans: list[tuple[int, int, str]] = []
    inflated = 0
    for entry in _entries(directory, count):
        if entry.name in members:
            raise malformed(f"duplicate archive member {shown(entry.name)}; each name may stand there once")
        offset = _data_offset(source, entry, directory_offset)
        compressed = entry.method == _DEFLATED
        members[entry.name] = ZipMember(entry.name, offset, entry.stored_bytes, entry.size, compressed)
        spans.append((entry.header_offset, offset + entry.stored_bytes, entry.name))
        inflated += entry.size if compressed else 0
        if inflated > ZIP_INFLATED_BYTES_MAX:
            raise malformed(f"compressed members unfold to more than {ZIP_INFLATED_BYTES_MAX} bytes all together")
    _check_apart(spans)
    return ZipArchive(source, members)


def _find_directory(source: Source) -> tuple[int, int, int]:
    """Count of members, offset and length of the directory."""
    end_offset = source.size - _END.size
    if end_offset < 0 or source.read_at(0, 4) != MEMBER_MAGIC:
        raise malformed("not a zip archive: it does not start with a member")
    magic, disk, first_disk, here, count, length, offset, comment = _END.unpack(source.read_at(end_offset, _END.size))
    if magic != b"PK\x05\x06" or comment:
        raise malformed("the zip archive does not end with its end record; it is cut off, or has a comment or a tail")
    directory_end = end_offset
    wide = _find_end_64(source, end_offset)
    if wide is not None:
        narrow = (disk, first_disk, here, count, length, offset)
        directory_end, claimed = wide
        limits = (_FULL_16,) * 4 + (_FULL_32,) * 2
        if any(old not in (full, new) for old, full, new in zip(narrow, limits, claimed, strict=True)):
            raise malformed("the zip archive's two end records contradict each other")
        disk, first_disk, here, count, length, offset = claimed
    if disk or first_disk or here != count:
        raise malformed("the zip archive is one part of several disks")
    if count > ZIP_MEMBERS_MAX or length > ZIP_DIRECTORY_BYTES_MAX:
        raise malformed(
            f"a zip directory of {count} members in {length} bytes is over the limit of {ZIP_MEMBERS_MAX} members "
            f"or {ZIP_DIRECTORY_BYTES_MAX} bytes"
        )
    if offset + length != directory_end:
        raise malformed(f"the zip directory claims bytes {offset} to {offset + length}, but ends at {directory_end}")
    if length < count * _ENTRY.size:
        raise malformed(f"a zip directory of {length} bytes cannot hold {count} members")
    return count, offset, length


def _find_end_64(source: Source, end_offset: int) -> tuple[int, tuple[int, ...]] | None:
    """Offset of the zip64 end record, and its disk, first disk, counts, length and offset; `None` without one."""
    locator_offset = end_offset - _LOCATOR_64.size
    if locator_offset < _END_64.size:
        return None
    magic, disk, offset, disks = _LOCATOR_64.unpack(source.read_at(locator_offset, _LOCATOR_64.size))
    if magic != b"PK\x06\x07":
        return None
    if disk or disks > 1 or offset + _END_64.size != locator_offset:
        raise malformed("the zip64 locator does not point at the record before it")
    record = _END_64.unpack(source.read_at(offset, _END_64.size))
    if record[0] != b"PK\x06\x06" or record[1] != _END_64.size - 12:
        raise malformed("the zip64 end record is damaged")
    return offset, record[4:]


def _entries(directory: bytes, count: int) -> Iterator[_Entry]:
    """Exactly `count` entries that fill the directory."""
    at = 0
    for index in range(count):
        if at + _ENTRY.size > len(directory):
            raise malformed(f"the zip directory ends inside entry {index} of {count}")
        (magic, made_by, _, flags, method, _, _, _, stored, size, name_length, extra_length, comment_length, disk, _,
         attributes, offset) = _ENTRY.unpack_from(directory, at)  # fmt: skip
        at += _ENTRY.size
        name_end, entry_end = at + name_length, at + name_length + extra_length + comment_length
        if magic != b"PK\x01\x02" or entry_end > len(directory):
            raise malformed(f"entry {index} of the zip directory is damaged")
        raw_name = directory[at:name_end]
        name = _member_name(raw_name)
        if _FULL_32 in (stored, size, offset) or disk == _FULL_16:
            extra = directory[name_end : name_end + extra_length]
            size, stored, offset, disk = _widen(extra, (size, stored, offset, disk), name)
        if disk:
            raise malformed(f"archive member {shown(name)} lies on another disk")
        if made_by >> 8 == 3 and stat.S_IFMT(attributes >> 16) not in _UNIX_FILE_KINDS:
            raise malformed(f"archive member {shown(name)} is a link or device; only files and folders are allowed")
        _check_method(name, flags, method, stored, size)
        yield _Entry(raw_name, name, offset, stored, size, method)
        at = entry_end
    if at != len(directory):
        raise malformed(f"{len(directory) - at} bytes follow the last of {count} entries in the zip directory")


def _member_name(raw: bytes) -> str:
    # Old archives mean code page 437 by other bytes, but what they look like there helps nobody.
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise malformed(f"archive member {raw[:40]!r}: its name is not UTF-8") from None
    check_member_name(name)
    return name


def _widen(extra: bytes, values: tuple[int, int, int, int], name: str) -> tuple[int, ...]:
    """Replace saturated fields by those of the zip64 extra field (4.5.3): in this order, only the saturated ones."""
    wide = _extra_field(extra, _ZIP64_EXTRA)
    if wide is None:
        raise malformed(f"archive member {shown(name)} needs a zip64 field and has none")
    result, at = [], 0
    for value, full, length in zip(values, (_FULL_32,) * 3 + (_FULL_16,), (8, 8, 8, 4), strict=True):
        result.append(int.from_bytes(wide[at : at + length], "little") if value == full else value)
        at += length if value == full else 0
    if at > len(wide):
        raise malformed(f"archive member {shown(name)}: its zip64 field is too short")
    return tuple(result)


def _extra_field(extra: bytes, wanted: int) -> bytes | None:
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == wanted:
            return extra[at + 4 : at + 4 + length]
        at += 4 + length
    return None


def _check_method(name: str, flags: int, method: int, stored: int, size: int) -> None:
    if flags & _ENCRYPTED_FLAG:
        raise malformed(f"archive member {shown(name)} is encrypted")
    if method not in (_STORED, _DEFLATED):
        raise malformed(f"archive member {shown(name)}: compression method {method} is neither stored nor deflated")
    if method == _STORED and stored != size:
        raise malformed(f"archive member {shown(name)} is stored, yet {stored} bytes stand for {size}")
    if name.endswith("/") and size:
        raise malformed(f"archive member {shown(name)} is a folder with content")


def _data_offset(source: Source, entry: _Entry, limit: int) -> int:
    """Where the data of a member starts, from its own header, which must agree with the directory."""
    header_bytes = _LOCAL.size + len(entry.raw_name)
    if entry.header_offset + header_bytes > limit:
        raise malformed(f"archive member {shown(entry.name)} starts at byte {entry.header_offset}, outside the members")
    header = source.read_at(entry.header_offset, header_bytes)
    magic, _, _, method, _, _, _, _, _, name_length, extra_length = _LOCAL.unpack_from(header)
    if magic != MEMBER_MAGIC:
        raise malformed(f"archive member {shown(entry.name)}: no member starts at byte {entry.header_offset}")
    if name_length != len(entry.raw_name) or header[_LOCAL.size :] != entry.raw_name or method != entry.method:
        raise malformed(f"archive member {shown(entry.name)}: its own header contradicts the directory")
    offset = entry.header_offset + header_bytes + int(extra_length)
    if offset + entry.stored_bytes > limit:
        raise malformed(
            f"archive member {shown(entry.name)} claims bytes {offset} to {offset + entry.stored_bytes}, "
            f"but members end at {limit}"
        )
    return offset


def _check_apart(spans: list[tuple[int, int, str]]) -> None:
    position, before = 0, ""
    for begin, end, name in sorted(spans):
        if begin < position:
            raise malformed(f"archive members {shown(before)} and {shown(name)} overlap")
        position, before = end, name


def _inflate(stored: bytes, member: ZipMember) -> bytes:
    """Unfold at most one byte more than was stated."""
    engine = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        content = engine.decompress(stored, member.size + 1)
    except zlib.error as error:
        raise _bad_stream(member, str(error)) from None
    if len(content) != member.size or not engine.eof:
        raise _bad_stream(member, f"it does not unfold to the {member.size} bytes that the directory states")
    return content


def _bad_stream(member: ZipMember, why: str) -> BadInput:
    return malformed(f"archive member {shown(member.name)} is damaged: {why}")
