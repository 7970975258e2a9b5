"""Lets the log tell of reads that have ended, those of readers who died included."""

from typing import NamedTuple

from cairn.gc.observe import list_pins
from cairn.gc.silence import Silence
from cairn.registry.reads import gather
from cairn.registry.registry import Registry


class Recorded(NamedTuple):
    """What was told: how many reads, and the names of dead pins, which may go now."""

    reads: int
    pins: set[str]


def record_reads(registry: Registry, silence: Silence) -> Recorded:
    """Tell it."""
    dead = [one for one in list_pins(registry.opened, silence) if one.dead]
    told = gather(registry, [one.record.read for one in dead if one.record])
    return Recorded(told.reads, {one.name for one in dead})
