"""The envelope of a checkpoint: when, where and how fast it was saved. Outside its identity."""

import msgspec

from cairn.core.canonical import decode
from cairn.core.ids import ModelId
from cairn.registry.indexing import read_object
from cairn.registry.publish import ENVELOPE
from cairn.registry.registry import Registry
from cairn.registry.state import Checkpoint
from cairn.store.written import WriteCounts


class Stages(msgspec.Struct):
    """Where a save's time went on one rank: seconds by stage, and bytes.

    Args:
        plan: walking the state and laying out the capture.
        capture: copying into host memory; what of it blocked training is `blocked`.
        write: hashing, sealing and storing; `digest`, `encode`, `seal`, `store` are its shares over all threads.
        merge: joining the fragments and writing the manifest (coordinator only).
        total: from the call of `save` to the fragment's being durable.
    """

    plan: float = 0.0
    capture: float = 0.0
    blocked: float = 0.0
    digest: float = 0.0
    encode: float = 0.0
    seal: float = 0.0
    store: float = 0.0
    write: float = 0.0
    merge: float = 0.0
    total: float = 0.0
    bytes_captured: int = 0


class RankReport(msgspec.Struct, frozen=True):
    """One rank's stage times (seconds) and bytes."""

    rank: int
    host: str
    stages: Stages
    counts: WriteCounts
    notes: tuple[str, ...] = ()


class Envelope(msgspec.Struct, frozen=True):
    """All ranks' reports and the coordinator's clock when it committed."""

    committing_at: int
    ranks: tuple[RankReport, ...]
    notes: tuple[str, ...] = ()


def read_envelope(registry: Registry, model: ModelId, checkpoint: Checkpoint) -> Envelope | None:
    """The envelope of a checkpoint; None if it has none.

    Raises:
        IntegrityError: it is missing or damaged.
    """
    if checkpoint.envelope is None:
        return None
    what = f"envelope of commit entry {checkpoint.n}"
    sealed = read_object(registry.opened, checkpoint.envelope, ENVELOPE)
    return decode(registry.model_keys(model).open_meta(sealed, ENVELOPE, what), Envelope, what)
