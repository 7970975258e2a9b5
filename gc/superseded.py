"""Telling damage that hurts from damage of what nobody needs any more: better copies serve, and collection takes it."""

from cairn.core.ids import ContentId
from cairn.gc.places import Damage, Places
from cairn.gc.report import Problem
from cairn.gc.scrub_manifests import ManifestScrub
from cairn.gc.scrub_packs import PackDirectories
from cairn.registry.state import State


class Superseded:
    """Which packs are damaged in nothing that checkpoints need from them.

    A copy counts if a collector on any machine prefers it: of equal content, collectors keep what was stored last, and
    see by a pack's size alone that bytes are gone.
    """

    def __init__(self, state: State, places: Places, directories: PackDirectories, manifests: ManifestScrub) -> None:
        self._places, self._directories, self._manifests = places, directories, manifests
        self._packs: dict[str, bool] = {}
        bad: dict[int, list[Damage]] = {}
        for damage in places.damages():
            bad.setdefault(damage.at.pack, []).append(damage)
        for number in bad.keys() | directories.flawed.keys():
            self._packs[state.pack(number).name] = self._is_superseded(number, bad.get(number, []))

    def covers(self, problem: Problem) -> bool:
        """Whether a problem is of a pack that nobody needs."""
        return self._packs.get(problem.object, False)

    def _is_superseded(self, number: int, damages: list[Damage]) -> bool:
        ids = {damage.id for damage in damages}
        if number in self._directories.flawed:
            held = self._directories.flawed[number]
            if held is None:
                return False
            ids.update(held)
        return all(self.serves_better(identifier, number) for identifier in ids if self._manifests.keeps(identifier))

    def serves_better(self, identifier: ContentId, number: int) -> bool:
        """Whether a copy in another pack is good, and collectors prefer it to that in a damaged pack."""
        return any(
            at.pack not in self._directories.flawed and (at.pack > number or number in self._directories.short)
            for at in self._places.locations(identifier)
            if at.pack != number
        )
