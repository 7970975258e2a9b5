"""Pins: what protects a read, and records it. A signed object that names the checkpoint, with heartbeats beside it.

The reader creates the pin, reads the head again, and goes on only if the checkpoint still lives: a collector that
did not see the pin had raised the floor before, hence its `drop` is seen by the reader. A collector that sees it defers
every condemned pack that holds a chunk of the checkpoint. When the read ends, its record stays (`reads.py`).
"""

import contextlib
from collections.abc import Iterable, Iterator

import msgspec

from cairn.core.errors import CairnError, IntegrityError, NotAllowed, StorageError
from cairn.core.ids import RANDOM_ID_BYTES, CheckpointId, ModelId
from cairn.core.process import ProcessMark, this_process
from cairn.registry.checkpoint import committed
from cairn.registry.entries import ObjectRef
from cairn.registry.fold_policy import AuditReads, audit_reads
from cairn.registry.heartbeat import Heartbeat
from cairn.registry.opened import OpenStore
from cairn.registry.reads import FOLDER as FOLDER
from cairn.registry.reads import ReadRecord, keep_ended, open_read, sign_read
from cairn.registry.registry import Registry
from cairn.registry.signedrecord import open_record, sign_record
from cairn.registry.state import Checkpoint, objects_of
from cairn.store.crypto.objects import ObjectKind, open_object, seal_object

PIN = ".pin"
_SIGNED = b"cairn/1/pin\0"


class PinRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a pin says (sealed under K_log, signed by the reader).

    Args:
        pin: its own id.
        reachability: the checkpoint's list, which outlives the checkpoint's own entry.
        objects: keys of the checkpoint's own objects, one after the other.
        read: what is left of it in the end, signed by itself; empty where reads are not recorded.
    """

    pin: bytes
    model: bytes
    checkpoint: bytes
    reachability: ObjectRef
    objects: bytes
    actor: bytes
    claimed_at: int
    process: ProcessMark
    read: bytes = b""


def read_pin(opened: OpenStore, name: str) -> PinRecord:
    """What a pin says.

    Raises:
        ObjectNotFound: its reader ended meanwhile.
        IntegrityError: damaged, not signed by whom it names, another pin's, or with the record of another read.
    """
    what = f"pin {name}"
    plain = open_object(opened.secrets.k_log, opened.store, ObjectKind.PIN, opened.backend.read(name), what)
    record = open_record(plain, PinRecord, _SIGNED, what)
    if name != f"{FOLDER}/{record.pin.hex()}{PIN}":
        raise IntegrityError(f"{what} is another pin's")
    if record.read:
        read = open_read(record.read, opened.store, f"the read of {what}")
        pinned = record.pin, record.model, record.checkpoint, record.actor
        if (read.read, read.model, read.checkpoint, read.actor) != pinned:
            raise IntegrityError(f"{what} holds the record of another read")
    return record


def pins_named(names: Iterable[str]) -> list[str]:
    """Those of some names that are pins."""
    return [name for name in names if name.startswith(f"{FOLDER}/") and name.endswith(PIN)]


@contextlib.contextmanager
def pinned(registry: Registry, model: ModelId, checkpoint: CheckpointId) -> Iterator[bool]:
    """Protect a checkpoint while it is read; yields False where nothing can be written, and reading is unprotected.

    Raises:
        NotFoundError: the model holds no such checkpoint, or no longer: also when what is read turns out to be missing,
            and it was deleted meanwhile.
        NotAllowed: nothing can be written, and the store requires that reads are recorded.
    """
    pin = Pin(registry, model, checkpoint)
    try:
        yield pin.held
    except IntegrityError:
        with contextlib.suppress(CairnError):
            registry.refresh()
        committed(registry, model, checkpoint)
        raise
    finally:
        pin.release()


class Pin:
    """One read's pin, from its making until `release`.

    Attributes:
        held: False where the store cannot be written to: the read is then unprotected, and not recorded.
    """

    def __init__(self, registry: Registry, model: ModelId, checkpoint: CheckpointId) -> None:
        """Create it, and make sure that the checkpoint still lives.

        Raises:
            NotFoundError: the model holds no such checkpoint, or no longer.
            NotAllowed: the store requires that reads are recorded, and this one cannot be.
        """
        self._opened, self.held = registry.opened, False
        pinned, now = None, committed(registry, model, checkpoint)
        # A supply, or a new commit of what had been dropped, may have come before the pin was there.
        while pinned is None or (pinned.reachability, objects_of(pinned)) != (now.reachability, objects_of(now)):
            self._remove()
            pinned = now
            if not self._create(registry, model, checkpoint, pinned):
                return
            try:
                registry.refresh()
                now = committed(registry, model, checkpoint)
            except BaseException:
                self._remove()
                raise
        self._heart.start()

    def _create(self, registry: Registry, model: ModelId, checkpoint: CheckpointId, held: Checkpoint) -> bool:
        """Create the object; False where the store cannot be written to."""
        opened, identifier = self._opened, self._opened.entropy.token(RANDOM_ID_BYTES)
        actor, at = opened.identity.actor, opened.clock.wall_ns()
        recording, read = audit_reads(registry.state), b""
        if recording is not AuditReads.OFF:
            read = sign_read(ReadRecord(identifier, opened.store, model, checkpoint, actor, at), opened.identity)
        record = PinRecord(
            identifier, model, checkpoint, held.reachability, b"".join(sorted(objects_of(held))),
            actor, at, this_process(), read,
        )  # fmt: skip
        signed = sign_record(record, opened.identity, _SIGNED)
        sealed = seal_object(opened.secrets.k_log, opened.store, ObjectKind.PIN, signed, opened.entropy)
        self._stem = f"{FOLDER}/{identifier.hex()}"
        self._heart = Heartbeat(opened, self._stem, registry.state.heartbeat_seconds)
        try:
            opened.backend.create(f"{self._stem}{PIN}", [sealed])
        except (NotAllowed, StorageError) as error:
            if recording is AuditReads.REQUIRED:
                raise NotAllowed(
                    f"reads of this store are recorded, and this one cannot be: {error.message}",
                    hint="read where the store can be written to; an owner may change 'cairn audit policy'",
                ) from None
            registry.unrecorded += bool(read)
            return False
        self.held, self._read, self._required = True, read, recording is AuditReads.REQUIRED
        return True

    def release(self) -> None:
        """The read is over."""
        if self.held:
            self._heart.stop()
            if self._read:
                try:
                    keep_ended(self._opened, self._stem, self._read)
                except CairnError:
                    self._end_without_record()
        self._remove()

    def _end_without_record(self) -> None:
        """The record cannot be written, as on a full disk."""
        if self._required:
            # The pin tells of the read until it is given up, and whoever gives it up records it.
            self.held = False
            return
        # Nothing is to wait for it; and the pin may have taken the room.
        self._remove()
        with contextlib.suppress(CairnError):
            keep_ended(self._opened, self._stem, self._read)

    def _remove(self) -> None:
        if self.held:
            self.held = False
            with contextlib.suppress(CairnError):
                self._opened.backend.delete(f"{self._stem}{PIN}")
