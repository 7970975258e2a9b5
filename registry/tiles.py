"""The log as files of the C2SP layout for tiled logs (c2sp.org/tlog-tiles), which any verifier of such logs reads.

    checkpoint                    the signed head
    tile/<level>/<number>         256 hashes; with .p/<width> behind it, fewer: the last of a level
    tile/entries/<number>         256 entries, each behind its length in 2 bytes, big-endian; likewise
    long-entries/<number>         the same with lengths of 4 bytes, for a range with an entry that 2 bytes cannot count

Entries are stored bytes, sealed as they are: a verifier needs no key.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from cairn.core.errors import DestinationExists
from cairn.registry.proofs import tree_root

TILE_HASHES = 256
_SHORT_BYTES_MAX = (1 << 16) - 1


def tile_path(number: int, width: int = TILE_HASHES) -> str:
    """The end of a tile's name: its number in groups of three digits, and its width if it is partial."""
    digits = str(number)
    digits = digits.zfill(-(-len(digits) // 3) * 3)
    groups = [digits[at : at + 3] for at in range(0, len(digits), 3)]
    path = "/".join([*(f"x{group}" for group in groups[:-1]), groups[-1]])
    return path if width == TILE_HASHES else f"{path}.p/{width}"


def hash_tiles(leaves: Sequence[bytes]) -> Iterator[tuple[str, bytes]]:
    """Name and content of every tile of hashes."""
    level, hashes = 0, list(leaves)
    while hashes:
        above = []
        for first in range(0, len(hashes), TILE_HASHES):
            some = hashes[first : first + TILE_HASHES]
            yield f"tile/{level}/{tile_path(first // TILE_HASHES, len(some))}", b"".join(some)
            if len(some) == TILE_HASHES:
                above.append(tree_root(some))
        level, hashes = level + 1, above


def entry_bundle(number: int, entries: Sequence[bytes]) -> tuple[str, bytes]:
    """Name and content of the bundle of up to 256 entries."""
    path = tile_path(number, len(entries))
    short = all(len(entry) <= _SHORT_BYTES_MAX for entry in entries)
    folder, width = ("tile/entries", 2) if short else ("long-entries", 4)
    return f"{folder}/{path}", b"".join(len(entry).to_bytes(width, "big") + entry for entry in entries)


class TileFolder:
    """Writes a log into a folder, which must be empty or new; the checkpoint comes last."""

    def __init__(self, folder: Path) -> None:
        """Nothing is written yet.

        Raises:
            DestinationExists: the folder holds something.
        """
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise DestinationExists(f"{folder} is not an empty folder", hint="name another place for the export")
        self._folder = folder
        self._entries: list[bytes] = []
        self._bundles = 0
        self.long_bundles = 0

    def add(self, stored: bytes) -> None:
        """Take the next entry."""
        self._entries.append(stored)
        if len(self._entries) == TILE_HASHES:
            self._close_bundle()

    def finish(self, leaves: Sequence[bytes], checkpoint: str) -> None:
        """Write the rest."""
        if self._entries:
            self._close_bundle()
        for name, data in hash_tiles(leaves):
            self._write(name, data)
        self._write("checkpoint", checkpoint.encode())

    def _close_bundle(self) -> None:
        name, data = entry_bundle(self._bundles, self._entries)
        self.long_bundles += name.startswith("long-entries/")
        self._write(name, data)
        self._bundles += 1
        self._entries = []

    def _write(self, name: str, data: bytes) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
