"""Saying what damage in packs affects: from bad places to checkpoints, tensors and files."""

from collections.abc import Iterable
from dataclasses import dataclass

from cairn.core.errors import CairnError
from cairn.core.ids import ContentId
from cairn.gc.affected import Labels, affected_names
from cairn.gc.places import Damage, Places
from cairn.gc.report import NOBODY, Findings, Target, few
from cairn.gc.roots import Root
from cairn.gc.scrub_manifests import ManifestScrub
from cairn.registry.opened import OpenStore
from cairn.registry.reachability import read_reachability


@dataclass(frozen=True, slots=True)
class Blame:
    """Turns damages into problems of packs."""

    opened: OpenStore
    places: Places
    manifests: ManifestScrub
    findings: Findings

    def run(self, roots: Iterable[Root]) -> None:
        """Report every damage once for each checkpoint that needs what was damaged, else for nobody."""
        hurt: dict[ContentId, list[Damage]] = {}
        for damage in self.places.damages():
            hurt.setdefault(damage.id, []).append(damage)
        if not hurt and not self.manifests.unplaced:
            return
        needed = set[ContentId]()
        for root in roots:
            names = self._named(root)
            needed.update(names & hurt.keys())
            self._checkpoint(root, names, hurt)
        self._report([damage for one, damages in hurt.items() if one not in needed for damage in damages], NOBODY, {})

    def _named(self, root: Root) -> set[ContentId]:
        """What a checkpoint needs, as far as it can be known."""
        try:
            return set(read_reachability(self.opened, root.state))
        except CairnError:
            return self._walk(root)

    def _walk(self, root: Root) -> set[ContentId]:
        named = set[ContentId]()
        try:
            manifest = self.manifests.open(root)
            for component in manifest.components:
                for digest in manifest.page_digests(component):
                    named.update(self.manifests.pages.facts(manifest, component, digest).ids)
        except CairnError:
            pass  # a problem already
        return named

    def _checkpoint(self, root: Root, names: set[ContentId], hurt: dict[ContentId, list[Damage]]) -> None:
        target = (root.model.hex(), root.checkpoint.hex())
        unplaced = names & self.manifests.unplaced
        affected = names & hurt.keys()
        if not affected and not unplaced:
            return
        lost = {one for one in affected if not self.places.serves(one)} | unplaced
        labels = affected_names(self.manifests, root, lost) if lost else {}
        self._report([damage for one in affected for damage in hurt[one]], target, labels)
        if unplaced:
            what = f"{len(unplaced)} of the ids that it lists are in no pack that can be read{_hits(unplaced, labels)}"
            self.findings.add(root.state.reachability.object_name("reach"), what, [target])

    def _report(self, damages: list[Damage], target: Target, labels: Labels) -> None:
        by_pack: dict[int, list[Damage]] = {}
        for damage in sorted(damages, key=lambda damage: (damage.at.pack, damage.at.offset)):
            by_pack.setdefault(damage.at.pack, []).append(damage)
        for number, found in by_pack.items():
            here = [f"{damage.why} (byte {damage.at.offset})" for damage in found if damage.why]
            gone = len(found) - len(here)
            what = few(here + ([f"chunks and pages that are gone: {gone}"] if gone else []))
            served = sum(self.places.serves(damage.id) for damage in found)
            if served == len(found):
                what += "; another copy serves, so nothing is lost"
            elif served:
                what += f"; another copy serves for {served} of them"
            what += "; no checkpoint needs it" if target == NOBODY else _hits([one.id for one in found], labels)
            self.findings.add(self.places.pack(number).name, what, [target])


def _hits(ids: Iterable[ContentId], labels: Labels) -> str:
    """`; lost: tensors a, b and 3 more; files x`, or nothing."""
    # What lost pages share is looked at once.
    groups = {id(names): names for one in ids for names in labels.get(one, ())}
    kinds: dict[str, dict[str, None]] = {}
    for names in groups.values():
        for kind, name in names:
            kinds.setdefault(kind, {})[name] = None
    parts = [
        f"{kind}{'s' if len(found) > 1 else ''} {few(found)}" for kind, found in sorted(kinds.items(), reverse=True)
    ]
    return f"; lost: {'; '.join(parts)}" if parts else ""
