"""Pins: what protects a read. A signed object that names the checkpoint, with heartbeats beside it.

The reader creates the pin, reads the head again, and goes on only if the checkpoint still lives: a collector that
did not see the pin had raised the floor before, hence its `drop` is seen by the reader. A collector that sees it defers
every condemned pack that holds a chunk of the checkpoint.
"""

import contextlib
from collections.abc import Iterable, Iterator

import msgspec

from cairn.core.canonical import decode, encode
from cairn.core.errors import CairnError, IntegrityError, NotAllowed, StorageError
from cairn.core.ids import RANDOM_ID_BYTES, ActorId, CheckpointId, ModelId
from cairn.core.process import ProcessMark, this_process
from cairn.registry.checkpoint import committed
from cairn.registry.entries import ObjectRef
from cairn.registry.heartbeat import Heartbeat
from cairn.registry.opened import OpenStore
from cairn.registry.registry import Registry
from cairn.registry.state import Checkpoint, objects_of
from cairn.store.crypto.objects import ObjectKind, open_object, seal_object
from cairn.store.crypto.signing import verify_signature

FOLDER = "pins"
PIN = ".pin"
_SIGNED = b"cairn/1/pin\0"


class PinRecord(msgspec.Struct, frozen=True):
    """What a pin says (sealed under K_log, signed by the reader).

    Args:
        pin: its own id.
        reachability: the checkpoint's list, which outlives the checkpoint's own entry.
        objects: keys of the checkpoint's own objects, one after the other.
    """

    pin: bytes
    model: bytes
    checkpoint: bytes
    reachability: ObjectRef
    objects: bytes
    actor: bytes
    claimed_at: int
    process: ProcessMark


class _Signed(msgspec.Struct, frozen=True, array_like=True):
    record: bytes
    signature: bytes


def read_pin(opened: OpenStore, name: str) -> PinRecord:
    """What a pin says.

    Raises:
        ObjectNotFound: its reader ended meanwhile.
        IntegrityError: damaged, not signed by whom it names, or another pin's.
    """
    what = f"pin {name}"
    plain = open_object(opened.secrets.k_log, opened.store, ObjectKind.PIN, opened.backend.read(name), what)
    signed = decode(plain, _Signed, what)
    record = decode(signed.record, PinRecord, what)
    if not verify_signature(ActorId(record.actor), signed.signature, _SIGNED + signed.record):
        raise IntegrityError(f"{what} has a bad signature")
    if name != f"{FOLDER}/{record.pin.hex()}{PIN}":
        raise IntegrityError(f"{what} is another pin's")
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
        held: False where the store cannot be written to: the read is then unprotected.
    """

    def __init__(self, registry: Registry, model: ModelId, checkpoint: CheckpointId) -> None:
        """Create it, and make sure that the checkpoint still lives.

        Raises:
            NotFoundError: the model holds no such checkpoint, or no longer.
        """
        self._opened, self.held = registry.opened, False
        pinned, now = None, committed(registry, model, checkpoint)
        # A supply, or a new commit of what had been dropped, may have come before the pin was there.
        while pinned is None or (pinned.reachability, objects_of(pinned)) != (now.reachability, objects_of(now)):
            self.release()
            pinned = now
            if not self._create(registry, model, checkpoint, pinned):
                return
            try:
                registry.refresh()
                now = committed(registry, model, checkpoint)
            except BaseException:
                self.release()
                raise
        self._heart.start()

    def _create(self, registry: Registry, model: ModelId, checkpoint: CheckpointId, held: Checkpoint) -> bool:
        """Create the object; False where the store cannot be written to."""
        opened, identifier = self._opened, self._opened.entropy.token(RANDOM_ID_BYTES)
        record = PinRecord(
            identifier, model, checkpoint, held.reachability, b"".join(sorted(objects_of(held))),
            opened.identity.actor, opened.clock.wall_ns(), this_process(),
        )  # fmt: skip
        plain = encode(record)
        signed = encode(_Signed(plain, opened.identity.sign(_SIGNED + plain)))
        sealed = seal_object(opened.secrets.k_log, opened.store, ObjectKind.PIN, signed, opened.entropy)
        self._stem = f"{FOLDER}/{identifier.hex()}"
        self._heart = Heartbeat(opened, self._stem, registry.state.heartbeat_seconds)
        try:
            opened.backend.create(f"{self._stem}{PIN}", [sealed])
        except (NotAllowed, StorageError):
            return False
        self.held = True
        return True

    def release(self) -> None:
        """The read is over."""
        if self.held:
            self.held = False
            self._heart.stop()
            with contextlib.suppress(CairnError):
                self._opened.backend.delete(f"{self._stem}{PIN}")
