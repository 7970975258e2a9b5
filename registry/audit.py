"""Verifying the log: every entry from the first on, against heads that were seen before, down to the present refs.

What the log alone cannot tell, a head that somebody kept elsewhere can: a shorter log that is in order is a rolled-back
one to whoever remembers more, and one that went another way is a fork.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from cairn.core.errors import CairnError, IntegrityError
from cairn.core.limits import LOG_ENTRY_BYTES_MAX
from cairn.registry.entries import open_signed
from cairn.registry.localfiles import Head
from cairn.registry.logview import LogView, WholeLog
from cairn.registry.names import entry_name
from cairn.registry.replay import UNREADABLE, VOUCHES_NOT, WRONG_ROOT
from cairn.registry.state import State, Void

# A log that was lost as a whole is not spelt out entry by entry.
_NAMED_MAX = 100


class KnownHead(NamedTuple):
    """A head that the log must have had, and who says so."""

    head: Head
    source: str


class Finding(NamedTuple):
    """What is wrong.

    Args:
        kind: `missing`, `altered`, `moved`, `foreign`, `contradicted`, `rolled back`, `forked` or `folded`.
        entry: which one, if it is one.
    """

    kind: str
    entry: int | None
    what: str

    @property
    def where(self) -> str:
        """The entry, to be put before what is wrong with it."""
        return f"log entry {self.entry}: " if self.entry is not None else ""


@dataclass(slots=True)
class Audit:
    """What a verification found.

    Args:
        head: of the log as it is stored.
        refs: how many the entries lead to.
        heads: that were compared.
        accepted: foreign entries that the caller knows of.
        voids: entries that have no effect by the rules, as one that lost a race.
    """

    head: Head
    state: State
    refs: int
    heads: list[KnownHead]
    findings: list[Finding] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    voids: list[Void] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    @property
    def whole(self) -> bool:
        """Whether the log is the one that its writers wrote; foreign entries, which have no effect, may stand in it."""
        return all(one.kind == "foreign" for one in self.findings)

    def require_whole(self) -> None:
        """Raise unless the log can be vouched for.

        Raises:
            IntegrityError: it was changed, cut, or went another way than a head that was seen.
        """
        if not self.whole:
            first = next(one for one in self.findings if one.kind != "foreign")
            raise IntegrityError(
                f"the log cannot be vouched for: {first.where}{first.what}",
                hint="run 'cairn audit verify' for all findings",
            )


def verify_log(view: LogView, heads: Iterable[KnownHead] = (), accepted: Collection[int] = ()) -> Audit:
    """Replay the log from entry 0, without cache or shortcuts, and judge it.

    Args:
        heads: that it must have had.
        accepted: foreign entries that were looked into before, and are no findings any more.
    """
    known = list(heads)
    return judge(WholeLog(view, {one.head.length for one in known}), known, accepted)


def judge(whole: WholeLog, heads: Iterable[KnownHead] = (), accepted: Collection[int] = ()) -> Audit:
    """Judge a log that was read with the lengths of these heads; as `verify_log`."""
    known = list(heads)
    refs = sum(len(model.refs) for model in whole.state.models.values())
    audit = Audit(whole.head, whole.state, refs, known)
    audit.findings += _without_bytes(whole)
    audit.findings += _voids(whole, audit, accepted)
    if whole.state.damaged_from is not None and not audit.findings:
        audit.findings.append(_contradicted(whole.state.damaged_from))
    audit.findings += [found for one in known if (found := _compared(whole, one)) is not None]
    return audit


def compare_fold(audit: Audit, folded: State, where: str) -> None:
    """Add a finding if this machine made something else of the same entries.

    Args:
        where: its cache lies.
    """
    if audit.ok and folded.length == audit.head.length and folded.copy() != audit.state.copy():
        what = f"refs and checkpoints that this machine shows are not what the entries say: remove {where}"
        audit.findings.append(Finding("folded", None, what))


def _without_bytes(whole: WholeLog) -> list[Finding]:
    found = [Finding("altered", n, f"it cannot be read: {why}") for n, why in whole.unreadable.items()]
    for n in whole.missing[:_NAMED_MAX]:
        found.append(Finding("missing", n, f"{entry_name(n)} was removed: later entries exist"))
    if len(whole.missing) > _NAMED_MAX:
        found.append(Finding("missing", None, f"{len(whole.missing)} entries were removed; the first are named"))
    return found


def _voids(whole: WholeLog, audit: Audit, accepted: Collection[int]) -> list[Finding]:
    found, gone = [], {*whole.missing, *whole.unreadable}
    vouched = _vouched(whole)
    for void in whole.state.voids:
        if void.n in gone:
            continue
        if void.reason not in VOUCHES_NOT:
            audit.voids.append(void)
            continue
        one = _judged(whole, void, later=void.n < vouched)
        if one.kind == "foreign" and one.entry in accepted:
            audit.accepted.append(void.n)
        else:
            found.append(one)
    return found


def _vouched(whole: WholeLog) -> int:
    """Position of the newest entry that agrees with all bytes before it; 0 where bytes were changed."""
    if whole.state.damaged_from is not None or whole.missing or whole.unreadable:
        return 0
    silent = {void.n for void in whole.state.voids if void.reason in VOUCHES_NOT}
    return next((n for n in range(whole.state.length - 1, 0, -1) if n not in silent), 0)


def _judged(whole: WholeLog, void: Void, later: bool) -> Finding:
    """What an entry is that vouches for nothing.

    Args:
        later: an entry behind it speaks for its bytes as they are.
    """
    n, view = void.n, whole.view
    if void.reason == WRONG_ROOT:
        return Finding("foreign", n, "it speaks for other entries before it than all later ones do; it has no effect")
    if void.reason != UNREADABLE:
        return Finding("foreign", n, f"{void.reason}; it has no effect")
    try:
        entry = open_signed(
            view.backend.read(entry_name(n), 0, LOG_ENTRY_BYTES_MAX + 1), view.store, view.k_log, f"log entry {n}"
        )
    except IntegrityError as error:
        if later:
            return Finding("foreign", n, "it does not open, and was written so: by a foreign hand, or in part")
        return Finding("altered", n, f"{error.message}: it was altered, or appended by a foreign hand")
    except CairnError as error:
        return Finding("altered", n, f"it cannot be read: {error.message}")
    if (entry.tenant, entry.store) != (view.tenant, view.store):
        return Finding("foreign", n, "it was signed for another store")
    return Finding("moved", n, f"what stands there was signed as entry {entry.n}: entries were reordered")


def _contradicted(n: int) -> Finding:
    what = "its signed root contradicts the entries before it, all of which open: one of them was replaced"
    return Finding("contradicted", n, what)


def _compared(whole: WholeLog, known: KnownHead) -> Finding | None:
    length, head = whole.head.length, known.head
    if head.length > length:
        what = f"the log has {length} entries, and {known.source} says that it had {head.length}: it was rolled back"
        return Finding("rolled back", None, what)
    root = whole.roots.get(head.length)
    if root == head.root:
        return None
    what = f"the first {head.length} entries are not those that {known.source} speaks for"
    if any(n < head.length for n in (*whole.missing, *whole.unreadable)) or whole.state.damaged_from is not None:
        return Finding("forked", None, f"{what}: they were changed since")
    return Finding("forked", None, f"{what}, though they are in order: the log was replaced, or went another way")
