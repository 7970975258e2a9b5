"""Scrubbing packs from outside: index pieces, sizes, headers, footers, trailers.

A pack's chunks are listed twice: by an index piece (which readers use) and by its own footer. Either serves where the
other is damaged; where both can be read they must agree.
"""

from itertools import groupby

from cairn.core.errors import CairnError, IntegrityError
from cairn.core.ids import ContentId
from cairn.gc.depth import Listed
from cairn.gc.places import Damage, Places
from cairn.gc.report import Findings
from cairn.gc.roots import packs_in_force
from cairn.registry.indexing import piece_locations
from cairn.registry.opened import OpenStore
from cairn.registry.state import Piece, State
from cairn.store.index import Location
from cairn.store.pack import read_footer


class PackDirectories:
    """What pieces and footers say about the packs of one state.

    Attributes:
        flawed: packs that are missing, short, or damaged at their ends; with the ids that they are said to hold, or
            None where nothing says it.
        short: those of them of which a collector sees without reading that they are.
        bad_pieces: index pieces that cannot be read, or say other things than the footers.
    """

    def __init__(self, opened: OpenStore, state: State, sizes: dict[str, int], findings: Findings) -> None:
        self._opened = opened
        self._state = state
        self._sizes = sizes
        self._findings = findings
        self._unfooted: dict[int, Piece] = {}
        self.flawed: dict[int, list[ContentId] | None] = {}
        self.short: set[int] = set()
        self.bad_pieces: list[Piece] = []

    def check(self, places: Places) -> None:
        """Check every piece and the directory of every pack in force; fill `places`."""
        for piece in self._state.pieces:
            name = piece.object.object_name("index")
            by_piece = None
            with self._findings.about(name):
                by_piece = _by_pack(piece_locations(self._opened, self._state, piece))
            if by_piece is None:
                self.bad_pieces.append(piece)
            for number in range(piece.first, piece.first + piece.count):
                if self._state.in_force(number):
                    listed = None if by_piece is None else by_piece.get(number, [])
                    self._check_pack(number, piece, listed, places)
        for number in sorted(set(packs_in_force(self._state)) - self._listed()):
            # While the log is damaged, a registry takes packs that no entry names into account.
            self._check_pack(number, None, None, places)

    def chunks(self, number: int) -> Listed:
        """Chunks of a pack that its stored bytes cover, by offset; none where neither footer nor piece can be read."""
        pack = self._state.pack(number)
        try:
            piece = self._unfooted.get(number)
            if piece is None:
                return self._by_footer(number)
            listed = _by_pack(piece_locations(self._opened, self._state, piece)).get(number, [])
        except CairnError as error:
            if error.retryable:
                raise
            return []
        return [(one, at) for one, at in listed if at.offset + at.length <= self._sizes.get(pack.name, -1)]

    def _listed(self) -> set[int]:
        return {number for piece in self._state.pieces for number in range(piece.first, piece.first + piece.count)}

    def _check_pack(self, number: int, piece: Piece | None, by_piece: Listed | None, places: Places) -> None:
        pack = self._state.pack(number)
        size = self._sizes.get(pack.name, -1)
        by_footer = None
        with self._findings.about(pack.name):
            if size != pack.size:
                raise IntegrityError(f"it has {size} bytes where {pack.size} belong" if size >= 0 else "it is missing")
            by_footer = self._by_footer(number)
        if by_footer is None and piece:
            self._unfooted[number] = piece
        listed = by_piece if by_piece is not None else by_footer
        if size != pack.size:
            self.short.add(number)
        if by_footer is None:
            self.flawed[number] = None if listed is None else [identifier for identifier, _ in listed]
        if listed is None:
            self._findings.add(pack.name, "what it held is unknown: its index piece cannot be read either")
            return
        places.add(listed)
        if by_footer is not None and by_piece is not None and piece and set(by_footer) != set(by_piece):
            what = f"it lists other chunks than the footer of pack {pack.name}"
            self._findings.add(piece.object.object_name("index"), what)
            if piece not in self.bad_pieces:
                self.bad_pieces.append(piece)
        for identifier, at in listed:
            if at.offset + at.length > size:
                places.note(Damage(identifier, at))

    def _by_footer(self, number: int) -> Listed:
        opened = self._opened
        chunks = read_footer(opened.backend, self._state.pack(number).name, opened.secrets.k_index, opened.store)
        return [(chunk.id, Location(number, chunk.offset, chunk.length)) for chunk in chunks]


def _by_pack(listed: Listed) -> dict[int, Listed]:
    ordered = sorted(listed, key=lambda entry: (entry[1].pack, entry[1].offset))
    return {number: list(entries) for number, entries in groupby(ordered, key=lambda entry: entry[1].pack)}
