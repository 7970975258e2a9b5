"""Fewer index pieces: many small ones that stand one after the other become one, without what is deleted."""

import numpy as np

from cairn.core.errors import ConflictError, IntegrityError
from cairn.core.limits import GC_MERGE_PIECE_BYTES_MAX, GC_MERGE_PIECES_MIN
from cairn.registry.entries import MergeIndex
from cairn.registry.indexing import piece_plain
from cairn.registry.opened import OpenStore
from cairn.registry.registry import Registry
from cairn.registry.session import Session
from cairn.registry.state import PACK_RECORD_BYTES, Piece, State
from cairn.registry.uploads import Uploads
from cairn.store.index import check_piece, columns_of, piece_of_columns


def merge_pieces(registry: Registry, least: int = GC_MERGE_PIECES_MIN) -> int:
    """Merge wherever at least so many small pieces stand in a row; returns the number of pieces that went.

    Pieces that cannot be read, and rows that others change meanwhile, are left alone.
    """
    state, gone = registry.refresh().copy(), 0
    for row in rows_of_small(state.pieces, least):
        try:
            gone += _merge(registry, state, row)
        except (IntegrityError, ConflictError):
            continue
    return gone


def rows_of_small(pieces: list[Piece], least: int) -> list[list[Piece]]:
    """Rows of neighbouring small pieces, each of at least `least` and of a bounded size together."""
    rows: list[list[Piece]] = []
    row: list[Piece] = []
    size = 0
    for piece in pieces:
        small = piece.object.size < GC_MERGE_PIECE_BYTES_MAX
        if not small or size + piece.object.size > least * GC_MERGE_PIECE_BYTES_MAX:
            rows.append(row)
            row, size = [], 0
        if small:
            row.append(piece)
            size += piece.object.size
    return [row for row in (*rows, row) if len(row) >= least]


def _merge(registry: Registry, state: State, row: list[Piece]) -> int:
    opened = registry.opened
    first, count = row[0].first, row[-1].first + row[-1].count - row[0].first
    plain = joined(opened, state, row, first, count)
    with Session(registry) as session:
        session.ensure_open()
        # Before the upload: an epoch that begins after it must not be claimed, for it may condemn the piece.
        epoch, _ = session.settle()
        piece = Uploads(opened, session).index_piece(plain)
        registry.append(lambda _: MergeIndex((session.id,), epoch, piece, first, count))
    return len(row) - 1


def joined(opened: OpenStore, state: State, row: list[Piece], first: int, count: int) -> bytes:
    """Plaintext of one piece in the place of several.

    Raises:
        IntegrityError: one of them cannot be read.
    """
    swept = np.zeros(state.pack_count, bool)
    for low, high in state.swept:
        swept[low : high + 1] = True
    columns = []
    for piece in row:
        plain, what = piece_plain(opened, state, piece)
        check_piece(plain, what)
        ids, packs, offsets, lengths = columns_of(plain, what)
        kept = ~swept[piece.first + packs.astype(np.int64)]
        packs = packs + np.uint32(piece.first - first)
        columns.append([column[kept] for column in (ids, packs, offsets, lengths)])
    table = state.packs[first * PACK_RECORD_BYTES : (first + count) * PACK_RECORD_BYTES]
    return piece_of_columns(table, [np.concatenate(column) for column in zip(*columns, strict=True)])
