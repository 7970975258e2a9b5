"""Payloads of entries about deletion and holds; `fold_collection.py` and `fold_deletion.py` have their rules."""

import msgspec

from cairn.registry.numbers import Ranges


class Tombstone(msgspec.Struct, frozen=True, omit_defaults=True):
    """Deletes checkpoints that no ref names. They can be restored until a `drop`.

    Args:
        due_at: when a `drop` may follow, by the writer's clock (ns).
        cause: why, in a word or two: `retention`, `deleted`.
        plan, descendants: as of a `ModelDelete`.
    """

    model: bytes
    checkpoints: tuple[bytes, ...]
    due_at: int
    cause: str
    plan: bytes = b""
    descendants: bool = False


class Restore(msgspec.Struct, frozen=True):
    """Brings back checkpoints that are tombstoned and not dropped."""

    model: bytes
    checkpoints: tuple[bytes, ...]


class Drop(msgspec.Struct, frozen=True):
    """Ends the time in which tombstoned checkpoints can be restored: from here on nothing keeps what they need."""

    model: bytes
    checkpoints: tuple[bytes, ...]


class ModelDelete(msgspec.Struct, frozen=True, omit_defaults=True):
    """Deletes a model with all its refs and checkpoints. It can be restored until its `shred`.

    Args:
        due_at: when a `shred` may follow, by the writer's clock (ns).
        cause: why, in a word or two.
        plan: BLAKE3 of the plan that it follows, which others may have approved.
        descendants: others were made from its checkpoints that stay, or can be restored without them, says whoever
            deletes it.
    """

    model: bytes
    due_at: int
    cause: str
    plan: bytes = b""
    descendants: bool = False


class ModelRestore(msgspec.Struct, frozen=True):
    """Brings back a deleted model whose keys were not destroyed."""

    model: bytes


class Content(msgspec.Struct, frozen=True):
    """Chunks and pages: how many, their stored bytes, and BLAKE3 of their ids, ascending, one after the other."""

    chunks: int
    stored_bytes: int
    ids: bytes


class Shared(msgspec.Struct, frozen=True):
    """What another model needs as well."""

    model: bytes
    content: Content


class Shred(msgspec.Struct, frozen=True):
    """The decision to destroy the keys of a deleted model: from here on it cannot be restored.

    Args:
        marked: length of the log that the accounts go by; void if anything has been made live since.
        checkpoints: how many it had.
        alone: what nothing else needs: unreadable once the keys are destroyed.
        packs: where that lies, as closed ranges of numbers, ascending: a collection lets none of them stay.
        shared: by each other model, what it needs as well: that stays.
    """

    model: bytes
    marked: int
    checkpoints: int
    alone: Content
    packs: Ranges
    shared: tuple[Shared, ...]


class Destroyed(msgspec.Struct, frozen=True):
    """Says that all wraps of the keys of shredded models, and the root key that opened them, were destroyed here."""

    models: tuple[bytes, ...]


class Confirm(msgspec.Struct, frozen=True):
    """Says that what could still open a shredded model elsewhere is gone too; `of` names it as its receipt does."""

    model: bytes
    of: str


class HoldSet(msgspec.Struct, frozen=True):
    """Keeps a checkpoint, or all that a model has and gets, from deletion until it is lifted.

    Args:
        hold: random id.
        checkpoint: empty for the whole model.
        sealed_reason: to the model's meta key.
    """

    hold: bytes
    model: bytes
    checkpoint: bytes
    sealed_reason: bytes


class HoldLift(msgspec.Struct, frozen=True):
    """Ends a hold."""

    hold: bytes
    model: bytes


class Approve(msgspec.Struct, frozen=True):
    """An owner's consent to a plan of deletion, by BLAKE3 of the plan."""

    plan: bytes


DeletionPayload = ModelDelete | ModelRestore | Shred | Destroyed | Confirm | HoldSet | HoldLift | Approve
PAYLOADS: dict[str, type[DeletionPayload]] = {
    "model.delete": ModelDelete,
    "model.restore": ModelRestore,
    "shred": Shred,
    "destroyed": Destroyed,
    "confirm": Confirm,
    "hold": HoldSet,
    "hold.lift": HoldLift,
    "approve": Approve,
}
