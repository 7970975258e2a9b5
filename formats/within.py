"""A run of bytes of a file, as a file."""

from dataclasses import dataclass

from cairn.formats.parsed import Source
from cairn.formats.refusal import malformed


@dataclass(frozen=True, slots=True)
class Within:
    """Bytes `[offset, offset + size)` of another source, which has them."""

    source: Source
    offset: int
    size: int

    def __post_init__(self) -> None:
        if self.offset < 0 or self.size < 0 or self.offset + self.size > self.source.size:
            raise malformed(
                f"bytes {self.offset} to {self.offset + self.size} are asked of a file of {self.source.size}: it is "
                "cut off, or another one than was meant"
            )

    def read_at(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`."""
        return self.source.read_at(self.offset + offset, length)
