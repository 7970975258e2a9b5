"""Members, grants and keys: who may write what, and the entries about it, of section 10. Imports nothing of Cairn."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tests.vectors.format.reader import Fields
from tests.vectors.format.reader_deletion import kept as kept_models

if TYPE_CHECKING:
    from tests.vectors.format.reader_log import Log

META = 0
WRITES = ("commit", "supply", "run.open", "ref.move", "ref.delete", "attest")
COLLECTS = ("gc.condemn", "gc.floor", "gc.swept", "gc.uncondemn", "index", "verify", "reads", "drop")
ROLES = ("owner", "writer", "reader", "collector", "auditor")


class Rights:
    """Members by actor: `role` (empty: former), `generation`, `hash`, `grants` by model (empty for all)."""

    def __init__(self) -> None:
        self.members: dict[bytes, Fields] = {}
        self.recovery, self.root, self.root_exposed = b"", 0, False
        self.due: dict[tuple[bytes, bytes], int] = {}
        self.people: dict[bytes, tuple[bytes, bytes]] = {}

    def role(self, actor: bytes) -> str:
        """A member's role; empty for anybody else."""
        return str(self.members[actor]["role"]) if actor in self.members else ""

    def may_write(self, log: "Log", actor: bytes) -> bool:
        """Whether entries of an actor count at all."""
        return actor in log.owners or self.role(actor) in ("writer", "collector")

    def refusal(self, log: "Log", entry: Fields, body: Fields) -> str | None:
        """Why the actor of an entry may not write it."""
        actor, kind = entry["actor"], entry["type"]
        if actor in log.owners:
            return None
        role = self.role(actor)
        if kind == "abort" and role in ("writer", "collector"):
            return None
        if role == "writer" and kind in WRITES:
            grants = self.members[actor]["grants"]
            return None if any(grants.get(m, {}).get("write") for m in (b"", body["model"])) else "no grant to write"
        if role == "collector" and kind in COLLECTS:
            dropped = [(body["model"], one) for one in body["checkpoints"]] if kind == "drop" else []
            early = any(self.due.get(one, 0) > entry["claimed_at"] for one in dropped)
            return "not due yet" if early else None
        return "its actor may not write it"

    def reads(self, actor: bytes, model: bytes) -> set[int]:
        """Component classes that a member may read of a model."""
        member = self.members.get(actor)
        if member is None or member["role"] not in ("writer", "reader"):
            return set()
        found = {one for key in {b"", model} for one in member["grants"].get(key, {"reads": ()})["reads"]}
        return found | {META} if found else found

    def read_all(self) -> set[bytes]:
        """Members who may read models to come."""
        return {actor for actor in self.members if self.reads(actor, b"")}

    def change(self, log: "Log", actor: bytes, member: Fields) -> None:
        """Take over a member, and expose what it may read no longer."""
        before = {model: self.reads(actor, model) for model in kept_models(log)}
        self.members[actor] = member
        for model, held in kept_models(log).items():
            lost = before[model] - self.reads(actor, model)
            if actor in held["readers"] and member["role"] != "owner":
                held["exposed"] |= lost
            if not self.reads(actor, model):
                held["readers"].pop(actor, None)


def newest(held: Fields) -> dict[int, int]:
    """The generation in force of each component of a model."""
    found: dict[int, int] = {}
    for key in held["keys"]:
        found[key["component"]] = max(key["generation"], found.get(key["component"], 0))
    return found


def retired(held: Fields, body: Fields) -> bool:
    """Rule (g) of a commit, broken."""
    known = {(key["component"], key["generation"]) for key in held["keys"]}
    for root in body["roots"]:
        place, force = (root["component"], root["generation"]), newest(held)
        old = root["component"] in force and root["generation"] != force[root["component"]]
        if old and not (body.get("carried") and place in known):
            return True
    return False


def given(wraps: Iterable[list[bytes]]) -> dict[bytes, bytes] | None:
    """Wraps by whose they are; None if one stands twice."""
    pairs = [(whose, wrap) for whose, wrap in wraps]
    return dict(pairs) if len({whose for whose, _ in pairs}) == len(pairs) else None


def _bad_wrap(rights: Rights, body: Fields) -> bool:
    known = rights.members.get(body["member"], {"generation": 0})["generation"]
    lengths = len(body["agreement"]), len(body["hash"])
    return body["role"] not in ROLES or lengths != (32, 32) or body["generation"] <= known


def _member(log: "Log", body: Fields, n: int) -> str | None:
    rights, actor, role = log.rights, body["member"], body["role"]
    before = rights.members.get(actor)
    if actor == rights.recovery or (role and _bad_wrap(rights, body)):
        return "its member or its wrap"
    if not role and before is None and actor not in log.owners:
        return "nobody's membership ends"
    kept = before["grants"] if before and role in ("writer", "reader") else {}
    kept = {m: {**one, "write": one["write"] and role == "writer"} for m, one in kept.items()}
    kept = {m: one for m, one in kept.items() if one["reads"] or one["write"]}
    generation = max(body["generation"], before["generation"] if before else 0)
    rights.change(log, actor, {**body, "generation": generation, "grants": kept})
    if role == "owner" and actor not in log.owners:
        log.owners.append(actor)
    elif role != "owner" and actor in log.owners:
        log.owners.remove(actor)
        rights.root_exposed = True
        for held in kept_models(log).values():
            held["exposed"] = set(newest(held))
    return None


def _grant(log: "Log", body: Fields, n: int) -> str | None:
    rights, actor, model, reads = log.rights, body["member"], body["model"], body["reads"]
    role, wraps = rights.role(actor), given(body["wraps"])
    if role not in ("writer", "reader") or (body["write"] and role != "writer"):
        return "its member's role"
    if (model and model not in log.models) or reads != sorted(set(reads)) or wraps is None:
        return "its model, components or wraps"
    member = rights.members[actor]
    grants = {m: one for m, one in member["grants"].items() if m != model}
    if reads or body["write"]:
        grants[model] = {"reads": reads, "write": body["write"]}
    models = list(kept_models(log)) if not model else [model]
    before = {one: rights.reads(actor, one) for one in models}
    rights.members[actor] = {**member, "grants": grants}
    after = {one: rights.reads(actor, one) for one in models}
    rights.members[actor] = member
    more = {one for one in models if after[one] - before[one]}
    if not more <= wraps.keys() <= {one for one in models if after[one]}:
        return "its wraps are of other models"
    rights.change(log, actor, {**member, "grants": grants})
    for one, wrap in wraps.items():
        kept_models(log)[one]["readers"][actor] = wrap
    return None


def _key_rotate(log: "Log", body: Fields, n: int) -> str | None:
    held, wraps = log.models.get(body["model"]), given(body["wraps"])
    if held is None or wraps is None or wraps.keys() != held["readers"].keys():
        return "its model, or its wraps"
    force = newest(held)
    for key in body["keys"]:
        if key["component"] in force and key["generation"] <= force[key["component"]]:
            return "a generation that is not new"
        force[key["component"]] = key["generation"]
    held["keys"] = [*held["keys"], *body["keys"]]
    held["wrap"], held["readers"] = body["wrap"], wraps
    held["exposed"] -= {key["component"] for key in body["keys"]}
    return None


def _root_rotate(log: "Log", body: Fields, n: int) -> str | None:
    rights, wraps = log.rights, given(body["models"])
    owners = sorted(actor for actor in rights.members if rights.role(actor) == "owner")
    if body["generation"] != rights.root + 1 or wraps is None or not wraps.keys() <= kept_models(log).keys():
        return "its generation, or its wraps"
    if any(held["holds"] and model not in wraps for model, held in kept_models(log).items()):
        return "a model that is held would lose its keys"
    if sorted(one["member"] for one in body["members"]) != owners:
        return "its owners"
    if any(_bad_wrap(rights, one) or one["role"] != "owner" for one in body["members"]):
        return "the wrap of an owner"
    for one in body["members"]:
        rights.members[one["member"]] |= {key: one[key] for key in ("agreement", "generation", "hash")}
    for model, wrap in wraps.items():
        kept_models(log)[model]["wrap"] = wrap
    rights.root, rights.root_exposed = body["generation"], False
    return None


def _person(log: "Log", body: Fields, n: int) -> str | None:
    people, told = log.rights.people, (body.get("commitment", b""), body.get("name", b""))
    if len(body["member"]) != 32 or (not any(told) and body["member"] not in people):
        return "no actor, or nothing is recorded of it"
    if any(told) and (len(told[0]), len(told[1])) != (32, 16):
        return "its lengths"
    people.pop(body["member"], None)
    if any(told):
        people[body["member"]] = told
    return None


RULES = {"person": _person, "member": _member, "grant": _grant, "key.rotate": _key_rotate, "root.rotate": _root_rotate}
