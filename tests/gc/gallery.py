"""A small store with one of everything that a scrub looks at, and ways to damage and mend it."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cairn.core.canonical import encode
from cairn.core.errors import CairnError, IntegrityError
from cairn.core.ids import RANDOM_ID_BYTES, CheckpointId, ModelId, SessionId
from cairn.gc.report import Problem, VerifyReport
from cairn.gc.scrub_open import verify_store
from cairn.registry.fold import TAG
from cairn.registry.localfiles import KeyHome
from cairn.registry.models import move_ref
from cairn.registry.registry import Registry
from cairn.registry.session import SessionRecord, session_object
from cairn.store.crypto.objects import ObjectKind, seal_object
from cairn.workspace.checkout import checkout
from tests.support.stores import Site, commit_tree, new_site
from tests.support.tensors import safetensors, weights
from tests.support.trees import snapshot, write_files

Tree = dict[bytes, tuple[object, ...]]


@dataclass
class Gallery:
    """The store, where it is used from, and what its checkpoints must give back."""

    site: Site
    folder: Path
    trees: dict[tuple[ModelId, CheckpointId], Tree] = field(default_factory=dict)

    def verify(self, full: bool = True, cold: bool = False) -> VerifyReport:
        """Verify as a process of its own does."""
        site = self.site
        home = KeyHome(site.home.data, site.home.state, self.fresh("cold") if cold else site.home.cache)
        return verify_store(site.backend, home, site.source, full)

    def fresh(self, stem: str) -> Path:
        """A path that nothing has used."""
        return self.folder / f"{stem}-{len(list(self.folder.iterdir()))}"

    def objects(self, ending: str = "") -> list[str]:
        """Names of the objects that must be whole: all but what an interrupted writer left."""
        return [name for name in self.site.names(ending) if not name.startswith("objects/" + "ee" * RANDOM_ID_BYTES)]

    @contextmanager
    def replaced(self, name: str, data: bytes | None) -> Iterator[None]:
        """Put other bytes, or none, in an object's place; mend it afterwards."""
        backend = self.site.backend
        whole = backend.read(name)
        backend.delete(name)
        if data is not None:
            backend.create(name, [data])
        try:
            yield
        finally:
            backend.delete(name)
            backend.create(name, [whole])

    def commit(self, model: str, files: dict[str, bytes], step: int) -> CheckpointId:
        """Commit files and remember what they look like."""
        tree = write_files(self.fresh("tree"), files)
        registry = self.site.registry()
        result = commit_tree(registry, tree, model, step=step)
        self.trees[result.model, result.checkpoint] = snapshot(tree)
        registry.close()
        return result.checkpoint

    def check_checkouts(self, report: VerifyReport, must_fail: bool) -> None:
        """What the report calls intact comes back bit for bit; what it calls affected comes back whole or not at all.

        Args:
            must_fail: the damage is of a kind that no checkout survives.
        """
        affected = {(problem.model, problem.checkpoint) for problem in report.errors}
        try:
            registry = self.site.registry()
        except IntegrityError as error:  # what was rolled back must not pass for a whole store
            assert "rolled back" in error.message
            return
        for (model, checkpoint), tree in self.trees.items():
            hit = (model.hex(), checkpoint.hex()) in affected
            found = self._checkout(registry, model, checkpoint)
            assert found == tree or (hit and found is None), f"checkpoint {checkpoint.hex()}"
            assert not (hit and must_fail and found), f"checkpoint {checkpoint.hex()} is not affected"
        registry.close()

    def _checkout(self, registry: Registry, model: ModelId, checkpoint: CheckpointId) -> Tree | None:
        """What a checkout gives; None if it fails, which must leave nothing behind."""
        room = self.fresh("room")
        try:
            checkout(registry, model, checkpoint, room / "out")
        except CairnError:
            assert not room.exists() or not list(room.iterdir())
            return None
        except KeyError:  # the damaged log does not show the checkpoint at all
            return None
        return snapshot(room / "out")


def make_gallery(folder: Path) -> Gallery:
    """Two models and three checkpoints that share content, a tag, an open session, a leftover.

    Tensors of several tiles, of one, and in line; an opaque file of several blocks; folders; a fill.
    """
    gallery = Gallery(new_site(folder / "home"), folder)
    noise = random.Random(1)
    shared = {"big": weights(1, 1024, 1024), "small": weights(2, 96, 64), "bias": weights(3, 8)}
    opaque = noise.randbytes((2 << 20) + 77)
    first = {
        "model.safetensors": safetensors({**shared, "head": weights(4, 64, 64)}),
        "data/notes.bin": opaque,
        "zeros.bin": bytes(1 << 20),
        "config.json": b'{"a": 1}',
    }
    second = {**first, "model.safetensors": safetensors({**shared, "head": weights(5, 64, 64)})}
    other = {"m.safetensors": safetensors({**shared, "own": weights(6, 512, 700)}), "blob": noise.randbytes(5000)}
    made = gallery.commit("first", first, 1)
    gallery.commit("first", second, 2)
    gallery.commit("other", other, 1)
    registry = gallery.site.registry()
    model = next(model for model, checkpoint in gallery.trees if checkpoint == made)
    move_ref(registry, model, "v1", TAG, None, made)
    _leave_session(gallery.site, registry)
    registry.close()
    return gallery


def _leave_session(site: Site, registry: Registry) -> None:
    """What a writer leaves that was killed before its commit: its session, and an upload."""
    opened, session = registry.opened, SessionId(b"\xee" * RANDOM_ID_BYTES)
    record = encode(SessionRecord(session, 0, opened.identity.actor, 0))
    sealed = seal_object(opened.secrets.k_log, opened.store, ObjectKind.SESSION, record, opened.entropy)
    site.backend.create(session_object(session), [sealed])
    site.backend.create(f"objects/{session.hex()}/{bytes(12).hex()}.pack", [b"half a pack"])


def named(report: VerifyReport, name: str) -> list[Problem]:
    """Problems of one object."""
    return [problem for problem in report.errors if problem.object == name]


def flipped(data: bytes, draw: random.Random) -> bytes:
    """The same bytes but for one."""
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ draw.randrange(1, 256)]) + data[at + 1 :]
