"""The log and its fold: sections 9 and 10 of `docs/format/v1.md`. Imports nothing of Cairn."""

import hashlib

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.vectors.format import reader_attest, reader_audit, reader_collection, reader_deletion, reader_rights
from tests.vectors.format.reader import LOG_ENTRY, MIB, Damaged, Fields, Vault, decode, hash_of, require
from tests.vectors.format.reader_collection import Collection, objects_of
from tests.vectors.format.reader_deletion import Deletion, kept
from tests.vectors.format.reader_rights import Rights, given, retired


def merkle_root(leaves: list[bytes]) -> bytes:
    """RFC 6962 tree hash of leaf hashes."""
    if len(leaves) < 2:
        return leaves[0] if leaves else hashlib.sha256(b"").digest()
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + merkle_root(leaves[:split]) + merkle_root(leaves[split:])).digest()


class Log:
    """Entries in order, each checked, and the state that they say."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self.owners: list[bytes] = []
        self.models: dict[bytes, Fields] = {}
        self.collection = Collection()
        self.rights = Rights()
        self.settings: dict[str, str] = {}
        self.deletion = Deletion()
        self.void: dict[int, str] = {}
        self.leaves: list[bytes] = []
        suspects: list[int] = []
        while (stored := self._stored(len(self.leaves))) is not None:
            entry = self._admit(len(self.leaves), stored)
            if entry is not None and entry["root"] != merkle_root(self.leaves):
                suspects.append(entry["n"])
            elif entry is not None:
                self.void |= dict.fromkeys(suspects, "its root is wrong")
                suspects = []
                self._apply(entry)
            self.leaves.append(hashlib.sha256(b"\0" + stored).digest())
        require(not suspects, f"the log is damaged before entry {suspects[:1]}")
        require(self.owners != [], "entry 0 is missing")

    def entry(self, n: int) -> Fields:
        """One entry, opened again."""
        stored = self._stored(n)
        require(stored is not None, "no such entry")
        return self._open(n, stored or b"")

    def _stored(self, n: int) -> bytes | None:
        path = self._vault.folder / f"log/{n // 4096:08d}/{n:012d}"
        return path.read_bytes() if path.exists() else None

    def _admit(self, n: int, stored: bytes) -> Fields | None:
        """The entry, if it opens, is signed, belongs here and its actor may write; entry 0 has to."""
        try:
            entry = self._open(n, stored)
            require(n == 0 or self.rights.may_write(self, entry["actor"]), "its actor may write nothing")
            return entry
        except Damaged as error:
            require(n > 0, f"entry 0: {error}")
            self.void[n] = str(error)
            return None

    def _open(self, n: int, stored: bytes) -> Fields:
        vault = self._vault
        require(len(stored) <= 4 * MIB, "over the limit")
        plain, signature = decode(vault.open(vault.k_log, LOG_ENTRY, stored))
        entry: Fields = decode(plain)
        try:
            actor = Ed25519PublicKey.from_public_bytes(entry["actor"])
            actor.verify(signature, b"cairn/1/log-entry\0" + plain)
        except (InvalidSignature, ValueError):
            raise Damaged("bad signature") from None
        require((entry["tenant"], entry["store"], entry["n"]) == (vault.tenant, vault.id, n), "of another place")
        return entry

    def _apply(self, entry: Fields) -> None:
        n, kind, body = entry["n"], entry["type"], decode(entry["payload"])
        self.actor, self.claimed_at = entry["actor"], entry["claimed_at"]
        require(entry["format"] == 1 and kind in _RULES, f"entry {n} needs a newer reader")
        if n == 0:
            require(kind == "init" and body["owner"] == entry["actor"], "entry 0 is no init entry")
            require(hash_of(body["founding"], length=16) == self._vault.tenant, "founding record")
            self.owners, self.rights.recovery = [body["owner"], body["recovery"]], body["recovery"]
        elif reason := self.rights.refusal(self, entry, body) or _RULES[kind](self, body, n):
            self.void[n] = reason
        elif kind == "tombstone":
            self.rights.due |= {(body["model"], one): body["due_at"] for one in body["checkpoints"]}

    def _model_create(self, body: Fields, n: int) -> str | None:
        if any(m["name_tag"] == body["name_tag"] or i == body["model"] for i, m in kept(self).items()):
            return "the model exists, or can be restored"
        if body["model"] in self.deletion.models:
            return "the model was deleted"
        readers = given(body.get("wraps", ()))
        if readers is None or readers.keys() != self.rights.read_all():
            return "its wraps leave out a reader"
        rights = {"readers": readers, "exposed": set()}
        self.models[body["model"]] = {
            **body,
            **rights,
            "refs": {},
            "checkpoints": {},
            "deleted": {},
            "runs": {},
            "holds": {},
        }
        return None

    def _commit(self, body: Fields, n: int) -> str | None:
        model, change = self.models.get(body["model"]), body["ref"]
        kind, held = change.get("kind", "branch"), self.collection
        if model is None or any(self._holds(m, body["checkpoint"]) for m in kept(self).values()):
            return "its model does not exist, or its checkpoint does"
        if retired(model, body):
            return "it is sealed to retired keys"
        if reason := held.refusal(body, n, objects_of(body)):
            return reason
        if kind not in ("branch", "tag"):
            return "it is neither a branch nor a tag"
        if _ref(model, change["tag"]) not in {(None, change["expected"]), (kind, change["expected"])}:
            return "its branch has another value"
        if body.get("parent") not in (None, *model["checkpoints"], *model["deleted"]):
            return "its parent is not one of this model"
        if body.get("run_epoch") not in (None, model["runs"].get(change["tag"])):
            return "another run has taken over its branch"
        held.take(body, n, objects_of(body))
        model["deleted"].pop(body["checkpoint"], None)
        model["checkpoints"][body["checkpoint"]] = body
        model["refs"][change["tag"]] = (kind, body["checkpoint"], change["sealed_name"])
        return None

    def _holds(self, model: Fields, checkpoint: bytes) -> bool:
        return checkpoint in model["checkpoints"] or model["deleted"].get(checkpoint) is not None

    def _supply(self, body: Fields, n: int) -> str | None:
        model = self.models.get(body["model"])
        if model is None or body["checkpoint"] not in model["checkpoints"]:
            return "its checkpoint does not exist"
        after = _supplied(model["checkpoints"][body["checkpoint"]], body)
        if after is None:
            return "its roots or its envelope are not the checkpoint's"
        if reason := self.collection.refusal(body, n, objects_of(after)):
            return reason
        self.collection.take(body, n, objects_of(after))
        model["checkpoints"][body["checkpoint"]] = after
        return None

    def _run_open(self, body: Fields, n: int) -> str | None:
        model = self.models.get(body["model"])
        if model is None or body["epoch"] != model["runs"].get(body["tag"], 0) + 1:
            return "its model does not exist, or its run epoch is not the next one"
        model["runs"][body["tag"]] = body["epoch"]
        return None

    def _ref_move(self, body: Fields, n: int) -> str | None:
        model, kind = self.models.get(body["model"]), body["kind"]
        if model is None or kind not in ("branch", "tag") or body["target"] not in model["checkpoints"]:
            return "its model or checkpoint does not exist"
        if _ref(model, body["tag"]) not in {(None, body["expected"]), (kind, body["expected"])}:
            return "its ref has another value"
        model["refs"][body["tag"]] = (kind, body["target"], body["sealed_name"])
        return None

    def _ref_delete(self, body: Fields, n: int) -> str | None:
        model = self.models.get(body["model"])
        if model is None or _ref(model, body["tag"])[1] != body["expected"]:
            return "its ref has another value"
        del model["refs"][body["tag"]]
        return None


def _ref(model: Fields, tag: bytes) -> tuple[str | None, bytes | None]:
    kind, checkpoint, _ = model["refs"].get(tag, (None, None, b""))
    return kind, checkpoint


_RULES = {
    "init": lambda log, body, n: "entry 0, and no other, is an init entry",
    "model.create": Log._model_create,
    "commit": Log._commit,
    "supply": Log._supply,
    "run.open": Log._run_open,
    "ref.move": Log._ref_move,
    "ref.delete": Log._ref_delete,
    "abort": lambda log, body, n: None,
    **reader_collection.RULES,
    **reader_rights.RULES,
    **reader_audit.RULES,
    **reader_deletion.RULES,
    **reader_attest.RULES,
}


def _supplied(held: Fields, body: Fields) -> Fields | None:
    """A checkpoint with what a `supply` brings; None if roots or envelope are not those that were lost."""
    roots = {root["component"]: root for root in held["roots"]}
    for root in body.get("roots", ()):
        lost = roots.get(root["component"])
        same = lost and (lost["generation"], lost["object"]["hash"]) == (root["generation"], root["object"]["hash"])
        if not same:
            return None
        roots[root["component"]] = root
    envelope = body.get("envelope")
    if envelope and (held.get("envelope") or {}).get("hash") != envelope["hash"]:
        return None
    changed = {"reachability": body["reachability"], "partial": body.get("partial", False), "quarantined": False}
    changed |= {"body": body.get("body") or held["body"], "envelope": envelope or held.get("envelope")}
    return {**held, **changed, "roots": [roots[root["component"]] for root in held["roots"]]}
