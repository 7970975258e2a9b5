"""The log as a trail: who did what when to which model, from what to what.

Everything is told by id. Names are opened where keys are at hand; without, a line lacks them and nothing else.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from cairn.core.errors import CairnError, IntegrityError
from cairn.core.ids import ModelId, StoreId
from cairn.registry.entries import Commit, Entry, ModelCreate, Payload, RefDelete, RefMove, payload_of
from cairn.registry.entries_audit import Reads
from cairn.registry.logview import LogView, StoredEntry, WholeLog
from cairn.registry.modelkeys import ModelKeys
from cairn.registry.models import open_commit_meta
from cairn.registry.reads import ReadRecord, open_read

# Ids and hashes; what is longer is sealed, or a list that only collection needs.
_ID_BYTES_MAX = 32
_LIST_MAX = 1000

KeysOf = Callable[[ModelId], ModelKeys]


class Wanted(NamedTuple):
    """Which lines to keep.

    Args:
        model: those about this one only.
        kinds: types of entries; the part before a dot stands for all that begin with it, as `gc`. Empty: all.
        since: nanoseconds by the writers' clocks.
    """

    model: bytes | None = None
    kinds: tuple[str, ...] = ()
    since: int = 0


class AuditLine(msgspec.Struct):
    """One entry.

    Args:
        type: `unreadable` where it does not open.
        leaf: its leaf hash: what inclusion is proved of.
        void: why it has no effect; None if it has.
        model, model_name: it is about; the name where keys are at hand.
        ref, before, after: what it moved; None: there was, or is, nothing.
        facts: the other fields that are ids, numbers or words.
        reads: what a `reads` entry tells of.
        message, step: of a commit, where keys are at hand.
    """

    n: int
    type: str
    actor: bytes | None
    claimed_at: int | None
    leaf: bytes
    void: str | None = None
    model: bytes | None = None
    model_name: str | None = None
    ref: str | None = None
    before: bytes | None = None
    after: bytes | None = None
    facts: dict[str, Any] = {}
    reads: list[ReadRecord] = []
    message: str | None = None
    step: int | None = None


class Trail:
    """The lines of a log, in its order."""

    def __init__(
        self,
        view: LogView,
        wanted: Wanted | None = None,
        keys: KeysOf | None = None,
        lengths: Collection[int] = (),
        each: Callable[[StoredEntry], None] | None = None,
    ) -> None:
        """Read the log from entry 0.

        Args:
            keys: opens a model's names; None: tell ids only.
            lengths, each: as of a `WholeLog`.
        """
        self._each = each
        self._wanted, self._keys, self._store = wanted or Wanted(), keys, view.store
        self.lines: list[AuditLine] = []
        # Sealed names by model, and by model and tag: every line comes after the entry that gave the name.
        self._names: dict[bytes, bytes] = {}
        self._refs: dict[tuple[bytes, bytes], bytes] = {}
        self.whole = WholeLog(view, lengths, self._take)
        voids = {void.n: void.reason for void in self.whole.state.voids}
        for line in self.lines:
            line.void = voids.get(line.n)

    def name_of(self, model: bytes) -> str | None:
        """Name of a model, if keys are at hand; None if it stays closed."""
        if self._keys is not None:
            with suppress(CairnError, KeyError):
                return self._keys(ModelId(model)).open_name(self._names[model], "name of a model")
        return None

    def _take(self, found: StoredEntry) -> None:
        if self._each is not None:
            self._each(found)
        entry = found.entry
        if entry is None:
            line = AuditLine(found.n, "unreadable", None, None, found.leaf)
            payload = None
        else:
            line = AuditLine(found.n, entry.type, entry.actor, entry.claimed_at, found.leaf)
            payload = _payload(entry)
        if isinstance(payload, ModelCreate):
            self._names.setdefault(payload.model, payload.sealed_name)
        elif isinstance(payload, Commit):
            self._refs[payload.model, payload.ref.tag] = payload.ref.sealed_name
        elif isinstance(payload, RefMove):
            self._refs[payload.model, payload.tag] = payload.sealed_name
        if payload is not None:
            _fill(line, payload, self._wanted.model, self._store)
        if self._wants(line):
            self.lines.append(line)
            if self._keys is not None and payload is not None and line.model is not None:
                # Names of a model that is gone, or that this user has no right to, stay closed.
                with suppress(CairnError, KeyError):
                    self._name(line, payload, self._keys(ModelId(line.model)))

    def _wants(self, line: AuditLine) -> bool:
        model, kinds, since = self._wanted
        return (
            (model is None or line.model == model or bool(line.reads))
            and (not kinds or line.type in kinds or line.type.partition(".")[0] in kinds)
            and (line.claimed_at or 0) >= since
        )

    def _name(self, line: AuditLine, payload: Payload, keys: ModelKeys) -> None:
        assert line.model is not None
        line.model_name = keys.open_name(self._names[line.model], "name of a model")
        if isinstance(payload, Commit):
            meta = open_commit_meta(keys, payload.meta, "facts of a commit")
            line.message, line.step = meta.message, meta.step
        tag = payload.ref.tag if isinstance(payload, Commit) else getattr(payload, "tag", None)
        if tag is not None:
            line.ref = keys.open_name(self._refs[line.model, tag], "name of a ref")


def facts_of(line: AuditLine) -> dict[str, Any]:
    """A line as JSON takes it: ids in hexadecimal digits."""
    return {
        "n": line.n,
        "type": line.type,
        "actor": line.actor.hex() if line.actor else None,
        "claimed_at_ns": line.claimed_at,
        "leaf": line.leaf.hex(),
        "void": line.void,
        "model": line.model.hex() if line.model else None,
        "model_name": line.model_name,
        "ref": line.ref,
        "before": line.before.hex() if line.before else None,
        "after": line.after.hex() if line.after else None,
        "message": line.message,
        "step": line.step,
        "facts": line.facts,
        "reads": [
            {
                "read": read.read.hex(),
                "model": read.model.hex(),
                "checkpoint": read.checkpoint.hex(),
                "actor": read.actor.hex(),
                "at_ns": read.at,
            }
            for read in line.reads
        ],
    }


def _payload(entry: Entry) -> Payload | None:
    try:
        return payload_of(entry)
    except IntegrityError:
        return None


def _fill(line: AuditLine, payload: Payload, model: bytes | None, store: StoreId) -> None:
    line.facts = facts = dict(_plain(payload))
    line.model = getattr(payload, "model", None)
    facts.pop("model", None)
    if isinstance(payload, Reads):
        line.reads = [read for read in _reads(payload, store, line.n) if model is None or read.model == model]
    elif isinstance(payload, Commit):
        line.before, line.after = payload.ref.expected, payload.checkpoint
        facts["tag"], facts["kind"] = payload.ref.tag.hex(), payload.ref.kind
        del facts["checkpoint"]
    elif isinstance(payload, RefMove):
        line.before, line.after = payload.expected, payload.target
        del facts["target"]
    elif isinstance(payload, RefDelete):
        line.before = payload.expected
    facts.pop("expected", None)


def _reads(payload: Reads, store: StoreId, n: int) -> Iterator[ReadRecord]:
    """What readers signed; what nobody signed, or of another store, tells of no read."""
    for one in payload.reads:
        with suppress(IntegrityError):
            yield open_read(one, store, f"a read in log entry {n}")


def _plain(payload: Payload) -> Iterator[tuple[str, Any]]:
    """Fields of a payload that are ids, numbers, words, or lists of such."""
    for name in payload.__struct_fields__:
        value = getattr(payload, name)
        if isinstance(value, bytes):
            if len(value) <= _ID_BYTES_MAX:
                yield name, value.hex()
        elif isinstance(value, tuple):
            if 0 < len(value) <= _LIST_MAX and all(map(_is_word, value)):
                yield name, [one.hex() if isinstance(one, bytes) else one for one in value]
        elif isinstance(value, str | int | float | dict):
            yield name, value


def _is_word(value: Any) -> bool:
    return isinstance(value, str | int) or (isinstance(value, bytes) and len(value) <= _ID_BYTES_MAX)
