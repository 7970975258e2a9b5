"""Merkle proofs over the log: that an entry is in it, and that a shorter log is the beginning of a longer one.

Both after RFC 6962, sections 2.1.1 and 2.1.2; how a verifier goes about them is spelt out in RFC 9162, sections 2.1.3.2
and 2.1.4.2. A leaf is the hash of an entry's stored bytes (`merkle.leaf_hash`), a proof a list of 32-byte hashes.
"""

from collections.abc import Iterable, Sequence

from cairn.registry.merkle import append_leaf, root_of, together


def tree_root(leaves: Iterable[bytes]) -> bytes:
    """Merkle tree hash of leaves."""
    frontier: tuple[bytes, ...] = ()
    for size, leaf in enumerate(leaves):
        frontier = append_leaf(frontier, size, leaf)
    return root_of(frontier)


def inclusion_path(leaves: Sequence[bytes], n: int) -> list[bytes]:
    """Audit path of leaf `n` in the tree of all `leaves`: hashes of its siblings, from the leaf up.

    Raises:
        IndexError: there is no such leaf.
    """
    return inclusion_paths(leaves, [n])[n]


def inclusion_paths(leaves: Sequence[bytes], positions: Iterable[int]) -> dict[int, list[bytes]]:
    """Audit paths of several leaves, by position; what they have in common is hashed once.

    Raises:
        IndexError: there is no such leaf.
    """
    roots: dict[tuple[int, int], bytes] = {}

    def root(low: int, high: int) -> bytes:
        if (low, high) not in roots:
            roots[low, high] = tree_root(leaves[at] for at in range(low, high))
        return roots[low, high]

    found = {}
    for n in positions:
        if not 0 <= n < len(leaves):
            raise IndexError(f"no leaf {n} in a tree of {len(leaves)}")
        path, low, high = list[bytes](), 0, len(leaves)
        while high - low > 1:
            middle = low + _split(high - low)
            path.append(root(middle, high) if n < middle else root(low, middle))
            low, high = (low, middle) if n < middle else (middle, high)
        found[n] = path[::-1]
    return found


def consistency_path(leaves: Sequence[bytes], first: int) -> list[bytes]:
    """What shows that the tree of the `first` leaves is the beginning of the tree of all.

    Raises:
        IndexError: `first` is 0, or more than there are.
    """
    if not 0 < first <= len(leaves):
        raise IndexError(f"no tree of {first} leaves at the beginning of one of {len(leaves)}")
    return _subproof(leaves, first, whole=True)


def _subproof(leaves: Sequence[bytes], first: int, *, whole: bool) -> list[bytes]:
    if first == len(leaves):
        return [] if whole else [tree_root(leaves)]
    split = _split(len(leaves))
    if first <= split:
        return [*_subproof(leaves[:split], first, whole=whole), tree_root(leaves[split:])]
    return [*_subproof(leaves[split:], first - split, whole=False), tree_root(leaves[:split])]


def _split(size: int) -> int:
    """The largest power of two below a size."""
    return 1 << (size - 1).bit_length() - 1


def proves_inclusion(leaf: bytes, n: int, length: int, path: Sequence[bytes], root: bytes) -> bool:
    """Whether a path shows that `leaf` is number `n` of the `length` leaves of the tree with that root."""
    if not 0 <= n < length:
        return False
    sides, computed = _sides(n, length - 1), leaf
    if len(path) != len(sides):
        return False
    for sibling, left in zip(path, sides, strict=True):
        computed = together(sibling, computed) if left else together(computed, sibling)
    return computed == root


def proves_consistency(first: int, first_root: bytes, second: int, second_root: bytes, path: Sequence[bytes]) -> bool:
    """Whether a path shows that the tree of `first` leaves is the beginning of that of `second`."""
    if not 0 < first <= second:
        return False
    if first == second:
        return not path and first_root == second_root
    # A tree whose size is a power of two is itself a node of the larger one, and is not repeated.
    whole = first & (first - 1) == 0
    hashes = [first_root, *path] if whole else list(path)
    node, last = first - 1, second - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    sides = _sides(node, last)
    if len(hashes) != 1 + len(sides):
        return False
    old = new = hashes[0]
    for sibling, left in zip(hashes[1:], sides, strict=True):
        if left:
            old, new = together(sibling, old), together(sibling, new)
        else:
            new = together(new, sibling)
    return old == first_root and new == second_root


def _sides(node: int, last: int) -> list[bool]:
    """For each sibling on the way up from a node of a level that ends with `last`, whether it stands to the left."""
    sides = []
    while last:
        left = bool(node & 1) or node == last
        sides.append(left)
        # The last node of a level may have no sibling there.
        while left and node and not node & 1:
            node, last = node >> 1, last >> 1
        node, last = node >> 1, last >> 1
    return sides
