"""How far two tensors of one shape and dtype are from each other, in numbers; and the sum of several."""

from collections.abc import Sequence
from math import hypot

import msgspec


class Norms(msgspec.Struct, frozen=True):
    """L2 norms over what is finite, in float64.

    Args:
        old, new: of each side's elements.
        difference: of new minus old, over elements that are finite on both sides.
        largest: the largest absolute difference of one element.
    """

    old: float = 0.0
    new: float = 0.0
    difference: float = 0.0
    largest: float = 0.0

    @property
    def relative(self) -> float | None:
        """The difference as a fraction of the old norm; None if that is zero."""
        return self.difference / self.old if self.old else None


class Delta(msgspec.Struct, frozen=True):
    """Two tensors, or parts of them, compared element by element.

    Args:
        elements: how many there are.
        changed: how many of them differ in a bit.
        norms: None for a dtype whose bits alone are no numbers, such as a quantised one.
        nan_old, nan_new, inf_old, inf_new: elements that are not finite; a complex one with a NaN counts as NaN.
    """

    elements: int = 0
    changed: int = 0
    norms: Norms | None = Norms()
    nan_old: int = 0
    inf_old: int = 0
    nan_new: int = 0
    inf_new: int = 0

    @property
    def all_finite(self) -> bool:
        """Whether the norms leave no element out."""
        return not (self.nan_old or self.inf_old or self.nan_new or self.inf_new)


def joined(parts: Sequence[Delta]) -> Delta:
    """The parts as one; without norms if some part has none. The same parts in the same order give the same sums."""
    norms = [part.norms for part in parts if part.norms is not None]
    whole = Norms(
        hypot(*(one.old for one in norms)),
        hypot(*(one.new for one in norms)),
        hypot(*(one.difference for one in norms)),
        max((one.largest for one in norms), default=0.0),
    )
    return Delta(
        sum(part.elements for part in parts),
        sum(part.changed for part in parts),
        whole if len(norms) == len(parts) else None,
        sum(part.nan_old for part in parts),
        sum(part.inf_old for part in parts),
        sum(part.nan_new for part in parts),
        sum(part.inf_new for part in parts),
    )
