"""Deletion of whole models, holds and approvals: section 10 of the format document. Imports nothing of Cairn."""

from typing import TYPE_CHECKING

from tests.vectors.format.reader import Fields

if TYPE_CHECKING:
    from tests.vectors.format.reader_log import Log


class Deletion:
    """This part of the state.

    Attributes:
        models: deleted ones by id: what they were (`held`, None once shredded), `due_at`, `root`, `destroyed`.
        approved: by plan, who has approved it; `done`: plans and the models that they were carried out for.
    """

    def __init__(self) -> None:
        self.models: dict[bytes, Fields] = {}
        self.approved: dict[bytes, list[bytes]] = {}
        self.done: set[tuple[bytes, bytes]] = set()


def kept(log: "Log") -> dict[bytes, Fields]:
    """Models that are live, or can be restored."""
    return {**log.models, **{one: gone["held"] for one, gone in log.deletion.models.items() if gone["held"]}}


def is_held(model: Fields, checkpoint: bytes) -> bool:
    """Whether a hold names a checkpoint or its model."""
    return bool({b"", checkpoint} & set(model["holds"].values()))


def unapproved(log: "Log", body: Fields, actor: bytes) -> str | None:
    """The rule on approvals, broken."""
    plan = body.get("plan", b"")
    if (plan, body["model"]) in log.deletion.done:
        return "its plan was carried out for this model"
    if body.get("descendants") and log.settings.get("delete_approval", "off") != "off":
        people = [one for one in log.owners if one != log.rights.recovery]
        if actor not in people or not any(
            one in people and one != actor for one in log.deletion.approved.get(plan, ())
        ):
            return "no other owner has approved its plan"
    return None


def carried_out(log: "Log", body: Fields) -> None:
    """An approved plan is used once a model."""
    if body.get("plan", b"") in log.deletion.approved:
        log.deletion.done.add((body["plan"], body["model"]))


def _delete(log: "Log", body: Fields, n: int) -> str | None:
    model = log.models.get(body["model"])
    if model is None or model["holds"]:
        return "its model does not exist, or is held"
    if reason := unapproved(log, body, log.actor):
        return reason
    carried_out(log, body)
    gone = {"held": log.models.pop(body["model"]), "due_at": body["due_at"], "root": 0, "destroyed": False}
    log.deletion.models[body["model"]] = gone
    return None


def _restore(log: "Log", body: Fields, n: int) -> str | None:
    gone = log.deletion.models.get(body["model"])
    if gone is None or gone["held"] is None:
        return "its model cannot be restored"
    log.models[body["model"]] = log.deletion.models.pop(body["model"])["held"]
    log.collection.live_n = n
    return None


def _shred(log: "Log", body: Fields, n: int) -> str | None:
    gone = log.deletion.models.get(body["model"])
    if gone is None or gone["held"] is None or gone["held"]["holds"] or gone["due_at"] > log.claimed_at:
        return "its model is not deleted, is held, or is not due"
    if body["marked"] > n or log.collection.live_n >= body["marked"] or log.collection.numbers(body["packs"]) is None:
        return "its marking is stale, or its packs are not in order"
    gone["held"], gone["root"] = None, log.rights.root
    return None


def _destroyed(log: "Log", body: Fields, n: int) -> str | None:
    found = [log.deletion.models.get(one) for one in body["models"]]
    if not found or len(set(body["models"])) != len(found):
        return "its models are not listed properly"
    for gone in found:
        if gone is None or gone["held"] or gone["destroyed"] or gone["root"] == log.rights.root:
            return "one of its models is not shredded, or done, or its root key is in force"
    for gone in found:
        assert gone is not None
        gone["destroyed"] = True
    return None


def _confirm(log: "Log", body: Fields, n: int) -> str | None:
    gone = log.deletion.models.get(body["model"])
    return "its model is not shredded" if gone is None or gone["held"] else None


def _hold(log: "Log", body: Fields, n: int) -> str | None:
    model, one = kept(log).get(body["model"]), body["checkpoint"]
    if model is None or (one and one not in model["checkpoints"] and not model["deleted"].get(one)):
        return "its model or checkpoint does not exist"
    if len(body["hold"]) != 16 or any(body["hold"] in other["holds"] for other in kept(log).values()):
        return "its id is not a new one"
    model["holds"][body["hold"]] = one
    log.collection.live_n = n
    return None


def _lift(log: "Log", body: Fields, n: int) -> str | None:
    model = kept(log).get(body["model"])
    if model is None or body["hold"] not in model["holds"]:
        return "there is no such hold"
    del model["holds"][body["hold"]]
    return None


def _approve(log: "Log", body: Fields, n: int) -> str | None:
    actors = log.deletion.approved.get(body["plan"], [])
    if len(body["plan"]) != 32 or log.actor in actors:
        return "it names no plan, or says the same again"
    log.deletion.approved[body["plan"]] = [*actors, log.actor]
    return None


RULES = {
    "model.delete": _delete, "model.restore": _restore, "shred": _shred, "destroyed": _destroyed,
    "confirm": _confirm, "hold": _hold, "hold.lift": _lift, "approve": _approve,
}  # fmt: skip
