"""RFC 6962 Merkle tree hash, kept as a frontier: the roots of the complete subtrees, largest first."""

from hashlib import sha256

EMPTY_ROOT = sha256(b"").digest()


class Leaf:
    """Hash of one leaf (RFC 6962, 2.1), piece by piece."""

    def __init__(self) -> None:
        self._hash = sha256(b"\0")

    def update(self, piece: bytes) -> None:
        """Add the next bytes."""
        self._hash.update(piece)

    def digest(self) -> bytes:
        """The hash."""
        return self._hash.digest()


def leaf_hash(data: bytes) -> bytes:
    """Hash of a leaf at hand."""
    return sha256(b"\0" + data).digest()


def together(left: bytes, right: bytes) -> bytes:
    """Hash of the node above two."""
    return sha256(b"\1" + left + right).digest()


def append_leaf(frontier: tuple[bytes, ...], size: int, leaf: bytes) -> tuple[bytes, ...]:
    """Frontier of a tree of `size` leaves after one more."""
    nodes = [*frontier, leaf]
    while size & 1:
        right, left = nodes.pop(), nodes.pop()
        nodes.append(together(left, right))
        size >>= 1
    return tuple(nodes)


def root_of(frontier: tuple[bytes, ...]) -> bytes:
    """Tree hash of a frontier."""
    if not frontier:
        return EMPTY_ROOT
    root = frontier[-1]
    for left in reversed(frontier[:-1]):
        root = together(left, root)
    return root
