"""The frontier against RFC 6962's own definition, and against the roots that certificate logs publish as examples."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.registry.merkle import EMPTY_ROOT, append_leaf, leaf_hash, root_of

# The eight leaves of the test vectors of the first certificate log, and the root after each.
LEAVES = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def naive(leaves: list[bytes]) -> bytes:
    """RFC 6962, 2.1, word for word: split at the largest power of two below the size."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return sha256(b"\0" + leaves[0]).digest()
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return sha256(b"\1" + naive(leaves[:split]) + naive(leaves[split:])).digest()


def frontier_of(leaves: list[bytes]) -> tuple[bytes, ...]:
    frontier: tuple[bytes, ...] = ()
    for size, leaf in enumerate(leaves):
        frontier = append_leaf(frontier, size, leaf_hash(leaf))
    return frontier


@pytest.mark.parametrize("size", range(9))
def test_published_roots(size: int) -> None:
    leaves = [bytes.fromhex(leaf) for leaf in LEAVES[:size]]
    assert root_of(frontier_of(leaves)).hex() == naive(leaves).hex() == ROOTS[size]


@given(st.lists(st.binary(max_size=4), max_size=70))
def test_the_frontier_gives_the_root_of_every_size(leaves: list[bytes]) -> None:
    frontier: tuple[bytes, ...] = ()
    assert root_of(frontier) == EMPTY_ROOT
    for size, leaf in enumerate(leaves):
        frontier = append_leaf(frontier, size, leaf_hash(leaf))
        assert root_of(frontier) == naive(leaves[: size + 1])
    assert len(frontier) == len(leaves).bit_count()


def test_a_frontier_is_small_however_long_the_log() -> None:
    assert len(frontier_of([b""] * 4095)) == 12


@given(st.lists(st.binary(max_size=4), min_size=1, max_size=20), st.data())
def test_any_changed_moved_or_missing_leaf_changes_the_root(leaves: list[bytes], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(leaves) - 1))
    root = root_of(frontier_of(leaves))
    assert root_of(frontier_of([*leaves[:at], leaves[at] + b"x", *leaves[at + 1 :]])) != root
    assert root_of(frontier_of(leaves[:at] + leaves[at + 1 :])) != root
    swapped = leaves[1:] + leaves[:1]
    assert (root_of(frontier_of(swapped)) == root) == (swapped == leaves)
