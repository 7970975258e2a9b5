"""The second reader's rules for settings and recorded reads: section 10 of the format document."""

from typing import TYPE_CHECKING

from tests.vectors.format.reader import Damaged, Fields, decode

if TYPE_CHECKING:
    from tests.vectors.format.reader_log import Log

_READS_MAX = 2048


def policy(log: "Log", body: Fields, n: int) -> str | None:
    settings = body["settings"]
    if not settings or settings.get("audit_reads", "off") not in ("required", "best_effort", "off"):
        return "it sets nothing, or something impossible"
    if settings.get("delete_approval", "off") not in ("off", "descendants"):
        return "an impossible setting"
    log.settings |= settings
    return None


def reads(log: "Log", body: Fields, n: int) -> str | None:
    told = body["reads"]
    if not 1 <= len(told) <= _READS_MAX:
        return "it tells of no read, or of too many"
    for one in told:
        try:
            both = decode(one)
        except Damaged:
            return "a read does not decode"
        if not isinstance(both, list) or len(both) != 2 or not all(isinstance(part, bytes) for part in both):
            return "a read is no array of two byte strings"
        if len(both[1]) != 64:
            return "a signature has 64 bytes"
    return None


RULES = {"policy": policy, "reads": reads}
