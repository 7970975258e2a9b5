"""Merkle proofs against the RFC's own example, and against a second verifier that was written from its text."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.registry.merkle import leaf_hash, together
from cairn.registry.proofs import (
    consistency_path,
    inclusion_path,
    proves_consistency,
    proves_inclusion,
    tree_root,
)
from tests.support import tiledlog

SIZES = st.integers(1, 70)


def leaves_of(size: int) -> list[bytes]:
    return [leaf_hash(b"%d" % n) for n in range(size)]


def test_the_example_of_the_rfc() -> None:
    """RFC 6962, 2.1.3: seven leaves; the names of the nodes are the RFC's."""
    a, b, c, d, e, f, j = leaves = leaves_of(7)
    g, h, i = together(a, b), together(c, d), together(e, f)
    k = together(g, h)
    last = together(i, j)
    assert tree_root(leaves) == together(k, last)
    assert inclusion_path(leaves, 0) == [b, h, last]
    assert inclusion_path(leaves, 3) == [c, g, last]
    assert inclusion_path(leaves, 4) == [f, j, k]
    assert inclusion_path(leaves, 6) == [i, k]
    assert consistency_path(leaves, 3) == [c, d, g, last]
    assert consistency_path(leaves, 4) == [last]
    assert consistency_path(leaves, 6) == [i, j, k]


@given(SIZES, st.data())
def test_every_entry_is_proved_to_both_verifiers(size: int, data: st.DataObject) -> None:
    leaves, n = leaves_of(size), data.draw(st.integers(0, size - 1))
    path, root = inclusion_path(leaves, n), tiledlog.tree_hash(leaves)
    assert tree_root(leaves) == root
    assert tiledlog.root_by_path(leaves[n], n, size, path) == root
    assert proves_inclusion(leaves[n], n, size, path, root)


@given(SIZES, st.data())
def test_every_beginning_is_proved_to_both_verifiers(size: int, data: st.DataObject) -> None:
    leaves, first = leaves_of(size), data.draw(st.integers(1, size))
    path = consistency_path(leaves, first)
    old, new = tiledlog.tree_hash(leaves[:first]), tiledlog.tree_hash(leaves)
    assert tiledlog.roots_by_proof(first, size, path, old) == (old, new)
    assert proves_consistency(first, old, size, new, path)


@given(SIZES, st.data())
def test_a_proof_of_something_else_proves_nothing(size: int, data: st.DataObject) -> None:
    leaves, n = leaves_of(size), data.draw(st.integers(0, size - 1))
    path, root = inclusion_path(leaves, n), tree_root(leaves)
    assert not proves_inclusion(leaf_hash(b"x"), n, size, path, root)
    assert not proves_inclusion(leaves[n], n, size, path, bytes(32))
    assert not proves_inclusion(leaves[n], n, size, [*path, bytes(32)], root)
    assert not proves_inclusion(leaves[n], size, size, path, root) and not proves_inclusion(
        leaves[n], -1, size, path, root
    )
    for at in range(len(path)):
        assert not proves_inclusion(leaves[n], n, size, [*path[:at], bytes(32), *path[at + 1 :]], root)
        assert not proves_inclusion(leaves[n], n, size, path[:at] + path[at + 1 :], root)
    for other in set(range(size)) - {n}:
        assert not proves_inclusion(leaves[n], other, size, path, root)


@given(SIZES, st.data())
def test_a_log_that_went_another_way_has_no_proof(size: int, data: st.DataObject) -> None:
    leaves, first = leaves_of(size), data.draw(st.integers(1, size))
    path, new = consistency_path(leaves, first), tree_root(leaves)
    at = data.draw(st.integers(0, first - 1))
    forked = tree_root([*leaves[:at], leaf_hash(b"x"), *leaves[at + 1 : first]])
    assert not proves_consistency(first, forked, size, new, path)
    assert not proves_consistency(first, tree_root(leaves[:first]), size, bytes(32), path)
    assert not proves_consistency(first, tree_root(leaves[:first]), size, new, [*path, bytes(32)])
    for at in range(len(path)):
        changed = [*path[:at], bytes(32), *path[at + 1 :]]
        assert not proves_consistency(first, tree_root(leaves[:first]), size, new, changed)
        assert not proves_consistency(first, tree_root(leaves[:first]), size, new, path[:at] + path[at + 1 :])


@pytest.mark.parametrize(("size", "n"), [(0, 0), (3, 3), (3, -1)])
def test_there_is_no_proof_of_what_is_not_there(size: int, n: int) -> None:
    with pytest.raises(IndexError):
        inclusion_path(leaves_of(size), n)


@pytest.mark.parametrize(("size", "first"), [(3, 0), (3, 4), (0, 0)])
def test_there_is_no_proof_of_a_longer_beginning(size: int, first: int) -> None:
    with pytest.raises(IndexError):
        consistency_path(leaves_of(size), first)


@given(st.integers(0, 20), st.integers(0, 20), st.lists(st.binary(min_size=32, max_size=32), max_size=6))
def test_any_bytes_are_a_proof_or_none(first: int, second: int, path: list[bytes]) -> None:
    """Neither verifier breaks on a hostile proof, and the two agree."""
    old = new = bytes(32)
    if 0 < first <= second:
        agreed = False
        with suppress(IndexError):
            agreed = tiledlog.roots_by_proof(first, second, path, old) == (old, new)
        assert proves_consistency(first, old, second, new, path) == agreed
    else:
        assert not proves_consistency(first, old, second, new, path)
    assert not proves_inclusion(old, first, second, path, b"")
