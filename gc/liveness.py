"""Which chunks and pages live, and in which packs: columns of numbers, 60 bytes a stored chunk.

Content ids are random, so their first 8 bytes tell them apart but for a chance of one in 2^24 for a million of them.
Where two agree, what nobody needs may be kept; what is needed is never taken for something else.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cairn.core.errors import IntegrityError, ObjectNotFound
from cairn.core.ids import HASH_BYTES, ContentId
from cairn.gc.roots import Root
from cairn.registry.entries import ObjectRef
from cairn.registry.indexing import locations_of, piece_plain
from cairn.registry.opened import OpenStore
from cairn.registry.reachability import open_list
from cairn.registry.state import Piece, State
from cairn.store.index import Location, check_piece, columns_of
from cairn.store.pack import PACK_OVERHEAD_BYTES, RECORD_BYTES, read_footer

Array = np.ndarray[Any, Any]
_WORDS = HASH_BYTES // 8


class Needed:
    """The ids that checkpoints need, by their first 8 bytes."""

    def __init__(self, words: Array, lists: Iterable[bytes]) -> None:
        """Take what lists of these names hold, ascending."""
        self._words, self._lists = words, set(lists)

    def add(self, opened: OpenStore, root: Root) -> None:
        """Take in what one more root needs, unless its list is quarantined.

        Raises:
            IntegrityError: its list cannot be read; the message says what can be done.
        """
        name = root.state.reachability.name
        if name not in self._lists and not root.state.quarantined:
            self._words = union(self._words, words_of_root(opened, root))
            self._lists.add(name)

    def holds(self, words: Array) -> Array:
        """Whether each of some ids is needed."""
        return has(self._words, words)

    def __len__(self) -> int:
        return len(self._words)


def words_of_root(opened: OpenStore, root: Root) -> Array:
    """First 8 bytes of each id that a root needs, ascending.

    Raises:
        IntegrityError: its list cannot be read; the message says what can be done.
    """
    try:
        return list_words(opened, root.state.reachability)
    except IntegrityError as error:
        raise IntegrityError(
            f"checkpoint {root.checkpoint.hex()} cannot be marked: {error.message}; nothing was deleted",
            hint="'cairn verify --repair' makes its list anew if its manifest can be read; else delete the checkpoint, "
            "or give up its content by 'cairn gc quarantine'",
        ) from None


def list_words(opened: OpenStore, ref: ObjectRef) -> Array:
    """First 8 bytes of each id of a reachability list, ascending.

    Raises:
        IntegrityError: it is missing, damaged, or not sorted.
    """
    plain, what = open_list(opened, ref)
    if len(plain) % HASH_BYTES:
        raise IntegrityError(f"{what} is not a list of ids")
    words = first_words(np.frombuffer(plain, np.uint8))
    if (words[1:] < words[:-1]).any():
        raise IntegrityError(f"{what} is not a sorted list of ids")
    return words


def first_words(joined: Array) -> Array:
    """First 8 bytes of ids that stand one after the other, as numbers of the same order."""
    return joined.view(">u8")[::_WORDS].astype(np.uint64)


def words_of_ids(ids: Array) -> Array:
    """First 8 bytes of each id of a column."""
    return first_words(np.frombuffer(ids.tobytes(), np.uint8))


def union(some: Array, more: Array) -> Array:
    """Distinct numbers of two ascending columns, ascending; merging beats hashing, which `numpy.union1d` does."""
    together = np.concatenate((some, more))
    together.sort(kind="stable")
    return distinct(together)


def distinct(ascending: Array) -> Array:
    """The numbers of an ascending column, each once."""
    first = np.ones(len(ascending), bool)
    first[1:] = ascending[1:] != ascending[:-1]
    once: Array = ascending[first]
    return once


def has(known: Array, asked: Array) -> Array:
    """Whether each number that is asked for is among known ones, which are ascending."""
    if not len(known):
        return np.zeros(len(asked), bool)
    found: Array = known[np.minimum(np.searchsorted(known, asked), len(known) - 1)] == asked
    return found


@dataclass(frozen=True, slots=True)
class Stored:
    """All that the packs in force hold, one row a place: ordered by id, and of one id the best place first.

    Args:
        ids: content ids.
        words: their first 8 bytes.
        packs, offsets, lengths: where they lie.
        best: whether a row is the first of its id.
        unknown: packs in force whose content nothing tells: they are left alone.
    """

    ids: Array
    words: Array
    packs: Array
    offsets: Array
    lengths: Array
    best: Array
    unknown: frozenset[int]

    def needed_rows(self, needed: Needed) -> Array:
        """The rows that must stay: the best place of each id that is needed."""
        return self.best & needed.holds(self.words)


def stored_in(
    opened: OpenStore, state: State, missing: Iterable[int] = (), bad: Iterable[tuple[bytes, int, int]] = ()
) -> Stored:
    """Read the index in force.

    Args:
        missing: packs that are not there, or not of the size that they should be: the last choice.
        bad: id, pack and offset of places that did not open before: likewise.
    """
    columns: list[list[Array]] = []
    known = set[int]()
    for piece in state.pieces:
        found, complete = columns_of_piece(opened, state, piece)
        columns.append(found)
        if complete:
            known.update(range(piece.first, piece.first + piece.count))
    in_force = np.ones(state.pack_count + 1, bool)
    in_force[list(state.condemned)] = False
    for low, high in state.swept:
        in_force[low : high + 1] = False
    in_force[state.pack_count] = False
    if not columns:
        columns = [[np.zeros(0, kind) for kind in ("S32", "<i8", "<u8", "<u4")]]
    ids, packs, offsets, lengths = (np.concatenate(column) for column in zip(*columns, strict=True))
    wrong = _misstated(state, in_force, packs, lengths) & known
    ids, packs, offsets, lengths = _corrected(opened, state, [ids, packs, offsets, lengths], wrong)
    rows = in_force[packs]
    ids, packs, offsets, lengths = ids[rows], packs[rows], offsets[rows], lengths[rows]
    words = words_of_ids(ids)
    absent = np.zeros(state.pack_count + 1, bool)
    absent[list(missing)] = True
    doubtful = absent[packs]
    for identifier, pack, offset in bad:
        word = np.frombuffer(identifier[:8], ">u8").astype(np.uint64)[0]
        doubtful |= (words == word) & (packs == pack) & (offsets == offset)
    # What was stored last serves first: it may have come to replace something damaged.
    order = np.lexsort((-packs, doubtful, words))
    ids, words, packs, offsets, lengths = ids[order], words[order], packs[order], offsets[order], lengths[order]
    best = np.ones(len(ids), bool)
    best[1:] = ids[1:] != ids[:-1]
    unknown = frozenset(number for number in range(state.pack_count) if in_force[number] and number not in known)
    return Stored(ids, words, packs, offsets, lengths, best, unknown)


def _corrected(opened: OpenStore, state: State, columns: list[Array], wrong: set[int]) -> list[Array]:
    """Places, those in some packs as the footers say, wherever these can be read."""
    for number in sorted(wrong):
        try:
            chunks = read_footer(opened.backend, state.pack(number).name, opened.secrets.k_index, opened.store)
        except (IntegrityError, ObjectNotFound):
            continue
        found = _columns_of([(chunk.id, Location(number, chunk.offset, chunk.length)) for chunk in chunks])
        others = columns[1] != number
        columns = [np.concatenate((old[others], new)) for old, new in zip(columns, found, strict=True)]
    return columns


def _misstated(state: State, in_force: Array, packs: Array, lengths: Array) -> set[int]:
    """Packs of which their index piece lists more or less than fills them: whatever wrote it has erred."""
    listed = packs_of_chunks(np.bincount(packs, lengths, state.pack_count), np.bincount(packs, None, state.pack_count))
    return {
        number for number in range(state.pack_count) if in_force[number] and state.pack(number).size != listed[number]
    }


def packs_of_chunks(stored_bytes: Array, chunks: Array) -> Array:
    """Sizes of packs that hold so many bytes in so many sealed chunks."""
    sizes: Array = stored_bytes.astype(np.int64) + chunks * RECORD_BYTES + PACK_OVERHEAD_BYTES
    return sizes


def columns_of_piece(opened: OpenStore, state: State, piece: Piece) -> tuple[list[Array], bool]:
    """Ids, packs, offsets and lengths that a piece lists, failing that the footers; and whether nothing is lacking."""
    try:
        plain, what = piece_plain(opened, state, piece)
        check_piece(plain, what)
        ids, packs, offsets, lengths = columns_of(plain, what)
        return [ids, packs.astype(np.int64) + piece.first, offsets, lengths], True
    except (IntegrityError, ObjectNotFound):
        found, complete = locations_of(opened, state, piece)
    return _columns_of(found), complete


def _columns_of(found: list[tuple[ContentId, Location]]) -> list[Array]:
    return [
        np.array([identifier for identifier, _ in found], "S32"),
        np.array([at.pack for _, at in found], np.int64),
        np.array([at.offset for _, at in found], np.uint64),
        np.array([at.length for _, at in found], np.uint32),
    ]
