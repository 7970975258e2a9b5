"""Telling whether a process of this machine still runs, whatever its number is used for by now.

Linux tells; elsewhere it is unknown.
"""

import os
from pathlib import Path

import msgspec

_PROC = Path("/proc")


class ProcessMark(msgspec.Struct, frozen=True):
    """One process of one boot of one machine.

    Args:
        machine: boot id and the namespace that the number counts in; empty where the system does not tell.
        number: pid.
        started: when it began, in the kernel's ticks.
    """

    machine: str = ""
    number: int = 0
    started: int = 0


def this_process() -> ProcessMark:
    """The mark of the calling process."""
    number = os.getpid()
    return ProcessMark(this_machine(), number, _started(number) or 0)


def is_known_dead(mark: ProcessMark) -> bool:
    """Whether a process ran on this machine and runs no more; False wherever that cannot be told."""
    machine = this_machine()
    if not machine or mark.machine != machine or not mark.number:
        return False
    started = _started(mark.number)
    return started != mark.started and not (started is None and _is_hidden(mark.number))


def this_machine() -> str:
    """Boot and process namespace; empty where the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(number: int) -> int | None:
    """When a process began; None if there is none, or none but its exit status."""
    try:
        # The name, in parentheses, may hold anything; the state follows it, and 19 fields later the time of its start.
        fields = (_PROC / str(number) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _is_hidden(number: int) -> bool:
    """Whether there is a process that must not be looked at, as where `/proc` hides those of other users."""
    if (_PROC / str(number)).exists():
        return False
    try:
        os.kill(number, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
