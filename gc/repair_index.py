"""Building an index piece anew from the footers of its packs."""

from cairn.core.errors import IntegrityError, ObjectNotFound
from cairn.registry.numbers import within
from cairn.registry.opened import OpenStore
from cairn.registry.state import Piece, State
from cairn.store.index import PieceEntry, encode_piece
from cairn.store.pack import read_footer


def rebuild_piece(opened: OpenStore, state: State, piece: Piece, *, give_up: bool) -> bytes | None:
    """Plaintext of a piece that lists the same packs; None if a pack that may hold something cannot be read.

    Args:
        give_up: list such a pack as empty: all that is needed lies elsewhere.
    """
    packs, entries = [], []
    for place, number in enumerate(range(piece.first, piece.first + piece.count)):
        pack = state.pack(number)
        packs.append(pack)
        if within(state.swept, number):
            continue
        try:
            if opened.backend.size(pack.name) != pack.size:
                raise IntegrityError(f"pack {pack.name} has another size than was committed")
            chunks = read_footer(opened.backend, pack.name, opened.secrets.k_index, opened.store)
        except (IntegrityError, ObjectNotFound):
            if not give_up:
                return None
        else:
            entries += [PieceEntry(chunk.id, place, chunk.offset, chunk.length) for chunk in chunks]
    return encode_piece(packs, entries)
