"""Chunks of one repeated byte are not stored: their digest is a sentinel that says which byte.

A sentinel is 31 zero bytes and the fill byte. A keyed hash takes that form with probability 2^-248.
"""

from cairn.core.buffers import Buffer
from cairn.core.ids import Digest

_PROBE_BYTES = 4096
_PREFIX = bytes(31)


def fill_digest(data: Buffer) -> Digest | None:
    """The sentinel of a chunk of one repeated byte, else None; empty data has none."""
    if not len(data):
        return None
    first = bytes(data[:_PROBE_BYTES])
    if first.count(first[0]) != len(first):
        return None
    # Rare past this point, so a copy is cheaper than a loop.
    whole = bytes(data)
    return Digest(_PREFIX + first[:1]) if whole.count(first[0]) == len(whole) else None


def fill_of(digest: bytes) -> int | None:
    """The repeated byte that a sentinel stands for, else None."""
    return digest[31] if digest.startswith(_PREFIX) else None
