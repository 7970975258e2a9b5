"""Index pieces that say less than packs hold: whoever wrote them erred, and nothing is deleted for it."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cairn.gc.collect import Collector, Options
from cairn.gc.depth import FULL
from cairn.gc.liveness import Array
from cairn.gc.repair import Repair
from cairn.gc.scrub import verify
from cairn.registry.entries import MergeIndex
from cairn.registry.entries_deletion import Drop, Tombstone
from cairn.registry.indexing import piece_plain
from cairn.registry.registry import Registry
from cairn.registry.session import Session
from cairn.registry.state import PACK_RECORD_BYTES
from cairn.registry.uploads import Uploads
from cairn.store.crypto.objects import ObjectKind
from cairn.store.index import columns_of, piece_of_columns
from tests.support.stores import checkout_to, commit_tree, new_site, tip

Columns = list[Array]


def merge_falsely(registry: Registry, change: Callable[[Columns], Columns]) -> None:
    """Put a changed piece in the place of the first one, as an owner may."""
    state = registry.refresh()
    piece = state.pieces[0]
    columns = list(columns_of(*piece_plain(registry.opened, state, piece)))
    table = state.packs[piece.first * PACK_RECORD_BYTES : (piece.first + piece.count) * PACK_RECORD_BYTES]
    plain = piece_of_columns(table, change(columns))
    with Session(registry) as session:
        session.ensure_open()
        epoch, _ = session.settle()
        uploads = Uploads(registry.opened, session)
        ref = uploads.seal(registry.opened.secrets.k_index, ObjectKind.INDEX_PIECE, plain, "index")
        registry.append(lambda _: MergeIndex((session.id,), epoch, ref, piece.first, piece.count))


def nothing(columns: Columns) -> Columns:
    return [column[:0] for column in columns]


def the_first_of_each_pack(columns: Columns) -> Columns:
    _, first = np.unique(columns[1], return_index=True)
    return [column[np.sort(first)] for column in columns]


@pytest.mark.parametrize("change", [nothing, the_first_of_each_pack])
def test_a_pack_of_which_the_index_lists_too_little_is_judged_by_its_footer(
    tmp_path: Path, change: Callable[[Columns], Columns]
) -> None:
    site, tree = new_site(tmp_path / "home"), tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_bytes(os.urandom(3 << 20))
    registry = site.registry()
    commit_tree(registry, tree, step=1)
    (tree / "file").write_bytes(os.urandom(1 << 20))
    commit_tree(registry, tree, step=2)
    model, _ = tip(registry)
    merge_falsely(site.registry(), change)
    registry = site.registry(cold=True)
    held = set(site.names("pack"))
    # Something else has to be collected, and the new index has to be believed by all.
    second = tip(registry)[1]
    commit_tree(registry, tree, step=3, always=True)
    registry.append(lambda state: Tombstone(model, (second,), 0, "test"))
    registry.append(lambda state: Drop(model, (second,)))
    Collector(registry, Options(unused=0.0)).run()
    assert held & set(site.names("pack")), "what is needed stays"
    done = Repair(site.registry(cold=True), {}, FULL).run()
    assert done.after.ok, done.after.errors
    Collector(site.registry(cold=True), Options(unused=0.0)).run()
    assert verify(site.registry(cold=True), full=True).ok
    checkout_to(site.registry(cold=True), "m@step:1", tmp_path / "out")
    assert (tmp_path / "out" / "file").stat().st_size == 3 << 20
