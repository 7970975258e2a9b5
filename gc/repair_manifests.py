"""Repairing bodies, component roots, envelopes and reachability lists."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from cairn.core.errors import CairnError
from cairn.core.ids import ContentId
from cairn.gc.roots import Root, roots_by_value
from cairn.gc.scrub import Scrub
from cairn.registry.checkpoint import checkpoint_id
from cairn.registry.entries import ObjectRef, RootRef
from cairn.registry.indexing import read_object
from cairn.registry.reachability import read_reachability
from cairn.registry.registry import Registry
from cairn.registry.state import Checkpoint
from cairn.registry.uploads import Uploads
from cairn.store.crypto.objects import ObjectKind, open_object


@dataclass(slots=True)
class Fix:
    """What takes the place of a checkpoint's own objects.

    Args:
        told: object, what was brought in its place, and from where.
        readable: its list can be read, or a new one is brought.
    """

    root: Root
    body: ObjectRef | None = None
    roots: tuple[RootRef, ...] = ()
    envelope: ObjectRef | None = None
    reachability: ObjectRef | None = None
    told: list[tuple[str, str, str]] = field(default_factory=list)
    readable: bool = True


class ManifestRepair:
    """What one round brings for manifests."""

    def __init__(self, registry: Registry, scrub: Scrub, sources: Mapping[str, Registry]) -> None:
        self._registry, self._scrub, self._sources = registry, scrub, sources

    def fixes(self, uploads: Uploads) -> list[Fix]:
        """Upload what is in reach, for each checkpoint that lacks something."""
        hurt = {problem.object for problem in self._scrub.findings.problems}
        found = []
        for _, root in roots_by_value(self._scrub.state):
            fix = Fix(root)
            if root.state.body.object_name("body") in hurt:
                self._body(fix, uploads)
            for ref in root.state.roots:
                if ref.object.object_name("root") in hurt:
                    self._root(fix, ref, uploads)
            envelope = root.state.envelope
            if envelope is not None and envelope.object_name("envelope") in hurt:
                self._envelope(fix, envelope, uploads)
            if (root.model, root.checkpoint) in self._scrub.manifests.unlisted:
                self._list(fix, uploads)
            if fix.told:
                found.append(fix)
        return found

    def _body(self, fix: Fix, uploads: Uploads) -> None:
        root, what = fix.root, "its body"
        if self._is_whole(root.state.body, "body"):
            return
        for name, source, held in self._elsewhere(root):
            k_ckpt, store = source.opened.secrets.k_ckpt, source.opened.store
            try:
                sealed = read_object(source.opened, held.body, "body")
                plain = open_object(k_ckpt, store, ObjectKind.BODY, sealed, what)
            except CairnError as error:
                _raise_retryable(error)
                continue
            if checkpoint_id(k_ckpt, plain) == root.checkpoint:
                fix.body = uploads.seal(k_ckpt, ObjectKind.BODY, plain, "body")
                fix.told.append((root.state.body.object_name("body"), "the body", name))
                return

    def _root(self, fix: Fix, ref: RootRef, uploads: Uploads) -> None:
        if self._is_whole(ref.object, "root"):
            return
        for name, source, held in self._elsewhere(fix.root):
            same = [one.object for one in held.roots if one.object.hash == ref.object.hash]
            data = _read(source, same, "root")
            if data is not None:
                fix.roots += (msgspec.structs.replace(ref, object=uploads.put(data, "root")),)
                fix.told.append((ref.object.object_name("root"), "the component root", name))
                return

    def _envelope(self, fix: Fix, ref: ObjectRef, uploads: Uploads) -> None:
        if self._is_whole(ref, "envelope"):
            return
        for name, source, held in self._elsewhere(fix.root):
            same = [one for one in (held.envelope,) if one is not None and one.hash == ref.hash]
            data = _read(source, same, "envelope")
            if data is not None:
                fix.envelope = uploads.put(data, "envelope")
                fix.told.append((ref.object_name("envelope"), "the envelope", name))
                return

    def _list(self, fix: Fix, uploads: Uploads) -> None:
        root = fix.root
        ids, source = self._scrub.manifests.unlisted[root.model, root.checkpoint], "the manifest"
        if ids is None:
            ids, source = self._list_elsewhere(root)
        fix.readable = ids is not None
        if ids is not None:
            fix.reachability = uploads.reachability(ids)
            fix.told.append((root.state.reachability.object_name("reach"), "the reachability list", source))

    def _list_elsewhere(self, root: Root) -> tuple[set[ContentId] | None, str]:
        """The list that another store has, and its name; of a checkpoint that is here in part, what of it is here."""
        for name, source, held in self._elsewhere(root):
            try:
                ids = set(read_reachability(source.opened, held))
            except CairnError as error:
                _raise_retryable(error)
                continue
            if not held.partial:
                return {one for one in ids if not root.state.partial or self._scrub.places.serves(one)}, name
        return None, ""

    def _is_whole(self, ref: ObjectRef, kind: str) -> bool:
        """Whether the object is what was committed: what is wrong with it is then nothing that a copy mends."""
        return _read(self._registry, [ref], kind) is not None

    def _elsewhere(self, root: Root) -> Iterator[tuple[str, Registry, Checkpoint]]:
        for name, source in self._sources.items():
            model = source.state.models.get(root.model)
            held = model.checkpoints.get(root.checkpoint) if model else None
            if held is not None:
                yield name, source, held


def _read(registry: Registry, refs: list[ObjectRef], kind: str) -> bytes | None:
    for ref in refs:
        try:
            return read_object(registry.opened, ref, kind)
        except CairnError as error:
            _raise_retryable(error)
    return None


def _raise_retryable(error: CairnError) -> None:
    if error.retryable:
        raise error
