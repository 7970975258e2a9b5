"""What each process of the soak does, until it is killed or its time is over. Started as `python -m tests.soak.work`.

Every process writes what it has seen into a journal of its own, line by line, durable before it goes on; so whoever
looks afterwards knows what must be there, whatever was killed when.
"""

import hashlib
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cairn.core.errors import CairnError, GoneError, NotFoundError, TryAgain
from cairn.core.ids import CheckpointId, ModelId
from cairn.gc.collect import Collector, Options
from cairn.registry.deletion import tombstone
from cairn.registry.models import history, ref_value
from cairn.registry.registry import Registry
from cairn.registry.stores import open_store
from cairn.workspace.checkout import checkout
from cairn.workspace.commit import CommitOptions, commit

# Content comes from so many blocks, so that what one writer deletes another may just be storing again.
BLOCKS, BLOCK_BYTES, FILES = 48, 128 << 10, 6
KEPT = 3
WAIT_SECONDS = 60.0


class Journal:
    """Lines of one process."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")

    def say(self, kind: str, **facts: object) -> None:
        """One line, durable when this returns."""
        self._file.write(json.dumps({"kind": kind, **facts}) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def block(number: int) -> bytes:
    """One of the blocks that all content is made of."""
    return hashlib.shake_128(number.to_bytes(4, "big")).digest(BLOCK_BYTES)


def digest_of(folder: Path) -> str:
    """Digest of a folder's files."""
    found = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def writer(registry: Registry, folder: Path, journal: Journal, name: str, dice: random.Random) -> None:
    """Commit a changed folder, and delete all but the newest few of the branch."""
    tree = folder / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    for number in range(FILES):
        (tree / f"file-{number}").write_bytes(block(dice.randrange(BLOCKS)) + block(dice.randrange(BLOCKS)))
    (tree / "own").write_bytes(dice.randbytes(100_000))
    said = digest_of(tree)
    journal.say("begins", branch=name, digest=said)
    made = commit(registry, tree, f"model-{ord(name[-1]) % 2}", CommitOptions(name, message=said))
    journal.say("committed", branch=name, digest=said, model=made.model.hex(), checkpoint=made.checkpoint.hex())
    lines = history(registry, made.model, ref_value(registry, made.model, name))
    old = [line.id for line in lines[KEPT:]]
    if old:
        journal.say("deletes", checkpoints=[one.hex() for one in old])
        tombstone(registry, made.model, old, "soak", 0.0)


def reader(registry: Registry, folder: Path, journal: Journal, name: str, dice: random.Random) -> None:
    """Check out any checkpoint, and compare it with what its message says."""
    state = registry.refresh()
    known = [(model, one) for model, held in state.models.items() for one in held.checkpoints]
    if not known:
        time.sleep(0.2)
        return
    model, checkpoint = dice.choice(known)
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    try:
        said = message_of(registry, ModelId(model), CheckpointId(checkpoint))
        checkout(registry, ModelId(model), CheckpointId(checkpoint), out)
    except (GoneError, NotFoundError):
        registry.refresh()
        if checkpoint in registry.state.models[model].checkpoints:
            raise
        journal.say("found gone")
        return
    if digest_of(out) != said:
        raise AssertionError(f"checkpoint {checkpoint.hex()} holds other bytes than were committed")
    journal.say("read", bytes=sum(path.stat().st_size for path in out.iterdir()))


def message_of(registry: Registry, model: ModelId, checkpoint: CheckpointId) -> str:
    """What its writer said of a checkpoint: the digest of its files."""
    return history(registry, model, checkpoint, 1)[0].meta.message


def collector(registry: Registry, folder: Path, journal: Journal, name: str, dice: random.Random) -> None:
    """Collect once."""
    try:
        done = Collector(registry, Options(wait_seconds=WAIT_SECONDS, unused=dice.choice((0.0, 0.05, 0.3)))).run()
    except TryAgain:
        journal.say("waited in vain")
        return
    journal.say(
        "collected", objects=done.objects_deleted, bytes=done.bytes_deleted, copied=done.bytes_copied,
        deferred=done.objects_deferred, sessions=done.sessions_ended,
    )  # fmt: skip
    time.sleep(dice.random())


WORK: dict[str, Callable[[Registry, Path, Journal, str, random.Random], None]] = {
    "writer": writer,
    "reader": reader,
    "collector": collector,
}


def main(kind: str, name: str, store: str, folder: Path, seconds: float) -> None:
    """Work until time is over; a failure that is not a passing one ends the process with its reason in the journal."""
    folder.mkdir(parents=True, exist_ok=True)
    journal, dice = Journal(folder / "journal"), random.Random(f"{name} {time.time_ns()}")
    until = time.monotonic() + seconds
    registry = None
    while time.monotonic() < until:
        try:
            if registry is None:
                registry = open_store(store)
            WORK[kind](registry, folder, journal, name, dice)
        except CairnError as error:
            if not error.retryable and error.code not in ("conflict", "overtaken"):
                journal.say("failed", code=error.code, why=str(error))
                raise
            journal.say("retries", code=error.code)
            with suppress(CairnError):
                registry and registry.refresh()
        except BaseException as error:
            journal.say("failed", code="", why=repr(error))
            raise


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), float(sys.argv[5]))
