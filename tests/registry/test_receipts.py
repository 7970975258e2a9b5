"""Receipts of deletion: what they say, that they verify with nothing but a key, and that no lie in them does."""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from cairn.core.errors import BadInput, ConflictError, IntegrityError, NotAllowed, NotFoundError, UsageError
from cairn.core.ids import ModelId
from cairn.gc.collect import Collector
from cairn.gc.shred import shred_due
from cairn.registry.modeldeletion import delete_model
from cairn.registry.models import find_model
from cairn.registry.receiptform import (
    Reader,
    Receipt,
    Statement,
    check_receipt,
    decode_receipt,
    encode_receipt,
    sign_statement,
)
from cairn.registry.receipts import confirm, make_receipt
from cairn.registry.registry import Registry
from cairn.registry.remotes import Remote, Remotes
from cairn.registry.rights import Role
from cairn.registry.rotation import rotate_root
from cairn.registry.signedhead import key_name, verifier_key
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.signing import Identity
from tests.support.doubles import SeededEntropy
from tests.support.members import actor_of, give, join
from tests.support.stores import Site, checkout_to, commit_tree, new_site
from tests.support.trees import write_files


class Deleted:
    """Model `a` that shared a file with `b`, was read by a member, and is deleted; its keys are destroyed."""

    def __init__(self, folder: Path) -> None:
        self.site: Site = new_site(folder / "home")
        self.registry: Registry = self.site.registry()
        shared = Random(0).randbytes(300_000)
        for model in ("a", "b"):
            own = Random(model).randbytes(200_000)
            commit_tree(self.registry, write_files(folder / model, {"both": shared, "own": own}), model)
        self.reader = join(self.site, "reader", Role.READER)
        give(self.site, self.reader, "a", ComponentClass.FILES)
        checkout_to(self.reader.registry(), "a", folder / "read")
        self.registry.refresh()
        self.model: ModelId = find_model(self.registry, "a")
        delete_model(self.registry, self.model, "deleted", 0.0)

    def shred(self) -> None:
        shred_due(self.registry, lambda: None)

    @property
    def key(self) -> str:
        opened = self.registry.opened
        actor = opened.identity.actor
        return verifier_key(key_name(opened.store, actor, self.registry.state.owners), actor)

    def receipt(self) -> Receipt:
        return make_receipt(self.site.registry(), self.model)

    def told(self) -> Statement:
        return check_receipt(encode_receipt(self.receipt()), self.key)


@pytest.fixture
def deleted(tmp_path: Path) -> Deleted:
    return Deleted(tmp_path)


def opens(told: Statement) -> set[str]:
    return {one.of.partition(":")[0] for one in told.open}


def test_a_receipt_says_what_went_what_stays_and_what_is_open(deleted: Deleted) -> None:
    with pytest.raises(ConflictError, match="are not destroyed"):
        deleted.receipt()
    Collector(deleted.registry).run()
    deleted.shred()
    told = deleted.told()
    assert told.inaccessible_since_ns is not None and told.irrecoverable_since_ns is None
    assert opens(told) == {"packs", "objects", "holder", "root-copies", "storage"}
    Collector(deleted.registry).run()
    told = deleted.told()
    assert (told.model, told.checkpoints, told.packs_left, told.objects_left) == (deleted.model.hex(), 1, (), ())
    assert told.alone.chunks >= 2 and told.alone.stored_bytes > 200_000
    b = find_model(deleted.registry, "b")
    assert [(one.model, one.chunks >= 1, one.stored_bytes > 300_000) for one in told.shared] == [(b.hex(), True, True)]
    readers = {one.actor: (one.as_, one.reads) for one in told.readers}
    owner = deleted.registry.opened.identity.actor.hex()
    assert readers == {owner: ("owner", 0), actor_of(deleted.reader).hex(): ("member", 1)}
    assert opens(told) == {"holder", "root-copies", "storage"}


def test_all_is_closed_once_everybody_has_confirmed(deleted: Deleted) -> None:
    Remotes(deleted.registry.opened).add("origin", Remote("/elsewhere"))
    deleted.shred()
    Collector(deleted.registry).run()
    open_ = [one.of for one in deleted.told().open]
    assert "store:origin" in open_
    for of in open_:
        deleted.site.clock.sleep(60.0)
        confirm(deleted.registry, deleted.model, of)
    told = deleted.told()
    assert told.open == () and [one.of for one in told.confirmed] == open_
    assert told.irrecoverable_since_ns == told.confirmed[-1].event.claimed_at_ns
    with pytest.raises(NotFoundError, match="is not open"):
        confirm(deleted.registry, deleted.model, "storage")


def test_irrecoverable_is_nothing_before_its_bytes_are_gone(deleted: Deleted) -> None:
    """Whatever was confirmed before."""
    deleted.shred()
    for of in [one.of for one in deleted.told().open if one.confirmable]:
        confirm(deleted.registry, deleted.model, of)
    confirmed = deleted.told()
    assert opens(confirmed) == {"packs", "objects"} and confirmed.irrecoverable_since_ns is None
    deleted.site.clock.sleep(3600.0)
    Collector(deleted.registry).run()
    told = deleted.told()
    assert told.irrecoverable_since_ns is not None and told.irrecoverable_since_ns >= told.made_at_ns
    assert told.inaccessible_since_ns is not None
    assert told.irrecoverable_since_ns >= told.inaccessible_since_ns + int(3600e9)
    lie = {"irrecoverable_since_ns": told.confirmed[-1].event.claimed_at_ns}
    with pytest.raises(IntegrityError, match="irrecoverable_since_ns"):
        check_receipt(signed(deleted, **lie), deleted.key)


def test_what_the_store_itself_shows_cannot_be_confirmed(deleted: Deleted) -> None:
    deleted.shred()
    with pytest.raises(NotFoundError, match="is not open") as caught:
        confirm(deleted.registry, deleted.model, "packs")
    assert "storage" in caught.value.hint


def test_only_owners_make_receipts(deleted: Deleted) -> None:
    deleted.shred()
    with pytest.raises(NotAllowed):
        make_receipt(join(deleted.site, "collector", Role.COLLECTOR).registry(), deleted.model)


def test_it_shows_no_more_of_the_log_than_its_entries(deleted: Deleted) -> None:
    """Each entry is opened by a key of its own."""
    deleted.shred()
    rotate_root(deleted.registry)
    text = encode_receipt(deleted.receipt()).decode()
    assert deleted.registry.opened.secrets.k_log.hex() not in text
    assert len(json.loads(text)["evidence"]) < deleted.registry.state.length


# --- lies ---------------------------------------------------------------------------------------------


def signed(deleted: Deleted, /, **changes: Any) -> bytes:
    """The receipt with another statement, which its owner signs."""
    receipt = deleted.receipt()
    statement = msgspec.structs.replace(receipt.statement, **changes)
    signature = sign_statement(statement, deleted.registry.opened.identity)
    return encode_receipt(msgspec.structs.replace(receipt, statement=statement, signature=signature))


LIES: dict[str, Callable[[Statement], dict[str, Any]]] = {
    "fewer chunks": lambda told: {"alone": msgspec.structs.replace(told.alone, chunks=0)},
    "nothing shared": lambda told: {"shared": ()},
    "more checkpoints": lambda told: {"checkpoints": 7},
    "another cause": lambda told: {"cause": "by mistake"},
    "earlier": lambda told: {"inaccessible_since_ns": 1},
    "another time of its entry": lambda told: {"shredded": msgspec.structs.replace(told.shredded, claimed_at_ns=1)},
    "another actor": lambda told: {"deleted": msgspec.structs.replace(told.deleted, actor="00" * 32)},
    "no new root key": lambda told: {"root_key": None},
    "an old root key": lambda told: {"root_key": told.deleted},
    "no packs": lambda told: {"packs": (), "packs_left": ()},
    "all swept": lambda told: {"packs_left": (), "objects_left": (), "open": _confirmable(told)},
    "nothing open": lambda told: {"open": ()},
    "storage forgotten": lambda told: {"open": _without(told, "storage")},
    "root copies forgotten": lambda told: {"open": _without(told, "root-copies")},
    "a holder forgotten": lambda told: {"open": _without(told, "holder:")},
    "another reason": lambda told: {"open": tuple(msgspec.structs.replace(one, why="none") for one in told.open)},
    "irrecoverable": lambda told: {"irrecoverable_since_ns": told.inaccessible_since_ns},
    "another model": lambda told: {"model": "00" * 16},
    "a longer log": lambda told: {"length": told.length + 1},
    "another root": lambda told: {"root": "00" * 32},
}


def _without(told: Statement, of: str) -> tuple[Any, ...]:
    return tuple(one for one in told.open if not one.of.startswith(of))


def _confirmable(told: Statement) -> tuple[Any, ...]:
    return tuple(one for one in told.open if one.confirmable)


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_statement_that_its_entries_do_not_bear_out_is_refused(
    deleted: Deleted, lie: Callable[[Statement], dict[str, Any]]
) -> None:
    deleted.shred()
    with pytest.raises(IntegrityError):
        check_receipt(signed(deleted, **lie(deleted.receipt().statement)), deleted.key)


def test_an_owner_whom_the_new_root_key_was_given_is_among_those_who_could_read(deleted: Deleted) -> None:
    second = actor_of(join(deleted.site, "second", Role.OWNER)).hex()
    deleted.registry.refresh()
    deleted.shred()
    told = deleted.told()
    assert f"holder:{second}" in {one.of for one in told.open}
    readers = tuple(one for one in told.readers if one.actor != second)
    with pytest.raises(IntegrityError, match="'readers'"):
        check_receipt(signed(deleted, readers=readers, open=_without(told, f"holder:{second}")), deleted.key)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "ab " * 16}, {"store": "\n" * 32}, {"made_at_ns": 1 << 80}, {"made_at_ns": -1},
        {"readers": (Reader("\x1b[2J"),)}, {"readers": (Reader("00" * 32, "\x1b"),)},
        {"readers": (Reader("00" * 32, "", 1, 1 << 70),)},
    ],
)  # fmt: skip
def test_nothing_that_is_printed_of_it_is_free_text(deleted: Deleted, change: dict[str, Any]) -> None:
    """But for what is escaped."""
    deleted.shred()
    with pytest.raises(BadInput, match="no receipt of deletion"):
        check_receipt(signed(deleted, **change), deleted.key)


def test_a_confirmation_that_nobody_gave_is_refused(deleted: Deleted) -> None:
    deleted.shred()
    confirm(deleted.registry, deleted.model, "storage")
    told = deleted.told()
    forged = msgspec.structs.replace(told.confirmed[0], of="root-copies")
    with pytest.raises(IntegrityError, match="'confirmed'"):
        check_receipt(signed(deleted, confirmed=(forged,)), deleted.key)


@pytest.mark.parametrize("part", ["statement", "signature", "head", "entry", "key", "path", "swapped"])
def test_a_receipt_that_was_changed_is_refused(deleted: Deleted, part: str) -> None:
    deleted.shred()
    fields = json.loads(encode_receipt(deleted.receipt()))
    first = fields["evidence"][0]
    if part == "statement":
        fields["statement"]["cause"] = "x"
    elif part == "signature":
        fields["signature"] = "00" * 64
    elif part == "head":
        fields["head"] = fields["head"].replace("\n", "\n1", 1)
    elif part == "entry":
        stored = b64decode(first["stored"])
        first["stored"] = b64encode(stored[:-1] + bytes([stored[-1] ^ 1])).decode()
    elif part == "key":
        first["key"] = "00" * 32
    elif part == "path":
        first["path"][0] = "00" * 32
    else:
        first["entry"], fields["evidence"][1]["entry"] = fields["evidence"][1]["entry"], first["entry"]
    with pytest.raises(IntegrityError):
        check_receipt(json.dumps(fields).encode(), deleted.key)


def test_another_key_does_not_verify_it(deleted: Deleted) -> None:
    deleted.shred()
    data, stranger = encode_receipt(deleted.receipt()), Identity.generate(SeededEntropy(9)).actor
    with pytest.raises(IntegrityError, match="not by the key that was given"):
        check_receipt(data, stranger.hex())
    for bad in ("", "zz", f"cairn/{'0' * 32}+{deleted.key.partition('+')[2]}", "00" * 31):
        with pytest.raises(UsageError):
            check_receipt(data, bad)
    assert check_receipt(data, deleted.registry.opened.identity.actor.hex()).model == deleted.model.hex()


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff", b'{"statement": 1}'])
def test_what_is_no_receipt(data: bytes) -> None:
    with pytest.raises(BadInput, match="no receipt"):
        decode_receipt(data)


def test_a_receipt_may_be_laid_out_anew_and_not_added_to(deleted: Deleted) -> None:
    deleted.shred()
    fields = json.loads(encode_receipt(deleted.receipt()))
    assert check_receipt(json.dumps(fields).encode(), deleted.key).model == deleted.model.hex()
    fields["statement"]["also"] = "true"
    with pytest.raises(BadInput):
        check_receipt(json.dumps(fields).encode(), deleted.key)
