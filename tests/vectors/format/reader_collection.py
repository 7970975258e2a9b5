"""What lies in a store by its log: packs, index pieces, what is condemned and what was swept. Sections 8 and 10.

Imports nothing of Cairn.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.vectors.format.reader import Fields
from tests.vectors.format.reader_deletion import carried_out, is_held, kept, unapproved

if TYPE_CHECKING:
    from tests.vectors.format.reader_log import Log

PACK, INDEX, BODY, ROOT, REACH, ENVELOPE = range(6)
KINDS = 7
_DEPTHS = ("quick", "sampled", "full")


def key_of(reference: Fields, kind: int) -> bytes:
    """Key of an object that an entry names."""
    return bytes(reference["name"]) + bytes((kind,))


def pieces_of(joined: bytes, width: int) -> list[bytes]:
    """Byte strings of one width that stand one after the other; the last one may be short."""
    return [joined[at : at + width] for at in range(0, len(joined), width)]


def objects_of(checkpoint: Fields) -> set[bytes]:
    """Keys of a checkpoint's own objects."""
    keys = {key_of(checkpoint["body"], BODY), key_of(checkpoint["reachability"], REACH)}
    keys |= {key_of(root["object"], ROOT) for root in checkpoint["roots"]}
    return keys | ({key_of(checkpoint["envelope"], ENVELOPE)} if checkpoint.get("envelope") else set())


class Collection:
    """This part of the state.

    Attributes:
        condemned: epoch by number of a pack, or by key of another object.
        began: the entry that set each epoch.
    """

    def __init__(self) -> None:
        self.packs: list[bytes] = []
        self.pieces: list[tuple[Fields, int, int]] = []
        self.condemned: dict[int | bytes, int] = {}
        self.swept: set[int] = set()
        self.epoch = self.floor = self.live_n = 0
        self.began = {0: 0}

    def in_force(self, number: int) -> bool:
        """Whether the index offers a pack."""
        return number < len(self.packs) and number not in self.condemned and number not in self.swept

    def condemns(self, one: int | bytes) -> bool:
        """Whether something may be deleted by now."""
        return self.condemned.get(one, self.floor + 1) <= self.floor

    def refusal(self, body: Fields, n: int, brought: Iterable[bytes]) -> str | None:
        """Rules (b), (c) and (d) of a commit.

        Args:
            brought: keys of what the entry names beside packs and pieces.
        """
        packs, relied = pieces_of(body["packs"], 36), self.numbers(body["relied"])
        names = {pack[:28] for pack in packs}
        if self.refuses_epoch(body["epoch"]) or not self.began[body["epoch"]] <= body["hit_position"] < n:
            return "its hits are not good for its epoch"
        if relied is None or any(number in self.swept or self.condemns(number) for number in relied):
            return "it relies on packs that are not in force"
        if len(body["packs"]) % 36 or len(names) != len(packs) or bool(packs) != bool(body["pieces"]):
            return "its packs are not listed properly"
        if any(name[:16] not in body["sessions"] for name in names) or names & {pack[:28] for pack in self.packs}:
            return "a pack of another session, or numbered already"
        if any(map(self.condemns, self._brought(body, brought))):
            return "it brings what is condemned"
        return None

    def refuses_epoch(self, epoch: int) -> bool:
        """Whether what sessions of an epoch did is void."""
        return not self.floor <= epoch <= self.epoch

    def take(self, body: Fields, n: int, brought: Iterable[bytes]) -> None:
        """Number packs, put pieces in force, and end the condemnation of what is needed."""
        packs = pieces_of(body["packs"], 36)
        for one in (*(self.numbers(body["relied"]) or ()), *self._brought(body, brought)):
            self.condemned.pop(one, None)
        self.pieces += [(piece, len(self.packs), len(packs)) for piece in body["pieces"]]
        self.packs += packs
        self.live_n = n

    def _brought(self, body: Fields, others: Iterable[bytes]) -> set[bytes]:
        own = {pack[:28] + bytes((PACK,)) for pack in pieces_of(body["packs"], 36)}
        return own | {key_of(piece, INDEX) for piece in body["pieces"]} | set(others)

    def numbers(self, ranges: list[list[int]]) -> list[int] | None:
        """Numbers of packs in closed ranges; None if these are not in order."""
        ends = [end for low, high in ranges for end in (low, high)]
        apart = all(before[1] < after[0] for before, after in pairwise(ranges))
        if ends != sorted(ends) or not apart or any(not 0 <= end < len(self.packs) for end in ends):
            return None
        return [number for low, high in ranges for number in range(low, high + 1)]

    def listed(self, body: Fields, packs: str) -> list[int | bytes] | None:
        """Numbers and keys that an entry lists; None if they are not in order."""
        numbers, keys = self.numbers(body[packs]), pieces_of(body["objects"], 29)
        if numbers is None or keys != sorted(set(keys)) or any(len(key) != 29 or key[28] >= KINDS for key in keys):
            return None
        return [*numbers, *keys]


# --- The entries of collection ---------------------------------------------------------------------


def condemn(log: "Log", body: Fields, n: int) -> str | None:
    held, going = log.collection, log.collection.listed(body, "condemned")
    if body["marked"] > n or held.live_n >= body["marked"]:
        return "something was made live since its marking"
    if going is None or body["relied"] or (body["pieces"] and not body["packs"]):
        return "it is not spelt properly"
    needed = named(log)
    for one in going:
        if one in held.condemned or one in needed or (isinstance(one, int) and one in held.swept):
            return "it condemns what is needed, condemned or gone"
    if body["packs"] or body["sessions"]:
        if reason := held.refusal(body, n, ()):
            return reason
        held.take(body, n, ())
    held.epoch += 1
    held.began[held.epoch] = held.live_n = n
    held.condemned |= dict.fromkeys(going, held.epoch)
    return None


def named(log: "Log") -> set[int | bytes]:
    """Keys of all objects that the state names."""
    held = log.collection
    keys: set[int | bytes] = {pack[:28] + bytes((PACK,)) for pack in held.packs}
    keys |= {key_of(piece, INDEX) for piece, _, _ in held.pieces}
    for model in kept(log).values():
        for checkpoint in (*model["checkpoints"].values(), *model["deleted"].values()):
            keys |= objects_of(checkpoint) if checkpoint else set()
    return keys


def floor(log: "Log", body: Fields, n: int) -> str | None:
    if body["epoch"] > log.collection.epoch:
        return "its epoch has not begun"
    log.collection.floor = max(log.collection.floor, body["epoch"])
    return None


def swept(log: "Log", body: Fields, n: int) -> str | None:
    held, gone = log.collection, log.collection.listed(body, "packs")
    if gone is None or not all(map(held.condemns, gone)):
        return "it names what was not condemned at or below the floor"
    for one in gone:
        del held.condemned[one]
    held.swept |= {one for one in gone if isinstance(one, int)}
    held.pieces = [piece for piece in held.pieces if not held.swept.issuperset(range(piece[1], piece[1] + piece[2]))]
    return None


def uncondemn(log: "Log", body: Fields, n: int) -> str | None:
    held, back = log.collection, log.collection.listed(body, "packs")
    if back is None or any(one not in held.condemned or held.condemns(one) for one in back):
        return "it names what is not condemned above the floor"
    for one in back:
        del held.condemned[one]
    held.live_n = n
    return None


def index(log: "Log", body: Fields, n: int) -> str | None:
    held, key = log.collection, key_of(body["piece"], INDEX)
    first, end = body["first"], body["first"] + body["count"]
    replaced = [piece for piece in held.pieces if first <= piece[1] < end]
    listed = {number for _, at, count in replaced for number in range(at, at + count)}
    if not replaced or end > len(held.packs):
        return "it replaces no piece, or lists packs that do not exist"
    if not held.swept.issuperset(listed ^ set(range(first, end))):
        return "it replaces a piece in part, or lists packs of others"
    if body["piece"]["name"][:16] not in body["sessions"] or held.refuses_epoch(body["epoch"]) or held.condemns(key):
        return "its piece is not good"
    held.condemned.pop(key, None)
    held.pieces = [piece for piece in held.pieces if piece not in replaced] + [(body["piece"], first, body["count"])]
    held.pieces.sort(key=lambda piece: piece[1])
    return None


# --- The entries of deletion -----------------------------------------------------------------------


def tombstone(log: "Log", body: Fields, n: int) -> str | None:
    model, chosen = log.models.get(body["model"]), body["checkpoints"]
    if model is None or not chosen or len(set(chosen)) != len(chosen):
        return "its model does not exist, or its checkpoints are not listed properly"
    if not model["checkpoints"].keys() >= set(chosen) or {ref[1] for ref in model["refs"].values()} & set(chosen):
        return "one of its checkpoints does not exist, or a ref names it"
    if any(is_held(model, one) for one in chosen):
        return "one of its checkpoints is held"
    if reason := unapproved(log, body, log.actor):
        return reason
    carried_out(log, body)
    for one in chosen:
        model["deleted"][one] = model["checkpoints"].pop(one)
    return None


def restore(log: "Log", body: Fields, n: int) -> str | None:
    if reason := _not_deleted(log, body):
        return reason
    model = log.models[body["model"]]
    for one in body["checkpoints"]:
        model["checkpoints"][one] = model["deleted"].pop(one)
    log.collection.live_n = n
    return None


def drop(log: "Log", body: Fields, n: int) -> str | None:
    if reason := _not_deleted(log, body):
        return reason
    if any(is_held(log.models[body["model"]], one) for one in body["checkpoints"]):
        return "one of its checkpoints is held"
    log.models[body["model"]]["deleted"] |= dict.fromkeys(body["checkpoints"])
    return None


def _not_deleted(log: "Log", body: Fields) -> str | None:
    model, chosen = log.models.get(body["model"]), body["checkpoints"]
    if model is None or not chosen or len(set(chosen)) != len(chosen):
        return "its model does not exist, or its checkpoints are not listed properly"
    return None if all(model["deleted"].get(one) for one in chosen) else "one of its checkpoints is not deleted"


def verify(log: "Log", body: Fields, n: int) -> str | None:
    model = log.models.get(body["model"])
    if model is None or body["depth"] not in _DEPTHS or not model["checkpoints"].keys() >= set(body["checkpoints"]):
        return "its model, its depth or one of its checkpoints does not exist"
    for one in body["checkpoints"]:
        model["checkpoints"][one]["verified"] = body["depth"]
    return None


def quarantine(log: "Log", body: Fields, n: int) -> str | None:
    held = log.models.get(body["model"], {"checkpoints": {}})["checkpoints"].get(body["checkpoint"])
    if held is None or is_held(log.models[body["model"]], body["checkpoint"]):
        return "its checkpoint does not exist, or is held"
    held["quarantined"] = True
    return None


RULES = {
    "gc.condemn": condemn, "gc.floor": floor, "gc.swept": swept, "gc.uncondemn": uncondemn, "index": index,
    "tombstone": tombstone, "restore": restore, "drop": drop, "verify": verify, "quarantine": quarantine,
}  # fmt: skip
