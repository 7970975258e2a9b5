"""How much of the packs a scrub reads. Pure."""

from dataclasses import dataclass

from blake3 import blake3

from cairn.core.ids import ContentId
from cairn.store.index import Location

Listed = list[tuple[ContentId, Location]]
_RANGE = 1 << 64


@dataclass(frozen=True, slots=True)
class Depth:
    """A depth.

    Args:
        part: of the chunks of each pack, how many are opened: 0 none, 1 all.
        seed: decides which; the same seed chooses the same.
    """

    part: float = 0.0
    seed: str = ""

    @property
    def name(self) -> str:
        """As log entries and reports call it."""
        if self.part >= 1:
            return "full"
        return "sampled" if self.part > 0 else "quick"

    def chosen(self, listed: Listed) -> Listed:
        """Those of a pack's chunks that are opened, at least one of them, in their order."""
        if self.part >= 1 or not listed:
            return listed
        drawn = [self._draw(identifier, at) for identifier, at in listed]
        least = min(drawn)
        return [one for one, draw in zip(listed, drawn, strict=True) if draw < self.part * _RANGE or draw == least]

    def _draw(self, identifier: ContentId, at: Location) -> int:
        place = at.pack.to_bytes(8, "big") + at.offset.to_bytes(8, "big")
        return int.from_bytes(blake3(self.seed.encode() + b"\0" + identifier + place).digest(length=8), "big")


QUICK, FULL = Depth(0.0), Depth(1.0)
