"""What `cairn diff` prints for people: a line for each difference, then what of it adds up."""

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from cairn.cli.output import count, emit, safe, size, table, when
from cairn.cli.plain import dotted, shortened, shown_pair
from cairn.core.ids import short
from cairn.manifests.forms import RANDOM, RANK_LOCAL
from cairn.manifests.provenance import DATA
from cairn.manifests.spans import span_of

if TYPE_CHECKING:
    from cairn.manifests.delta import Delta
    from cairn.manifests.diff import TensorChange
    from cairn.manifests.plaindiff import ItemChange
    from cairn.manifests.provenance import GroupChange
    from cairn.registry.compare import Comparison
    from cairn.registry.comparedfacts import Kinship, Side
    from cairn.registry.comparedvalues import ValueDifference
    from cairn.workspace.norms import Measured, Total

# Kind, what it is of, and the rest of the line.
Line = tuple[str, str, str]
# Items of one value, or of one part of the provenance, that are listed; a run may have thousands of shards.
_LISTED_MAX = 20
_RANKS_SHOWN = 4
_PER_RANK = {RANDOM: "random", RANK_LOCAL: "data"}


def render(found: "Comparison", measured: "Measured | None") -> None:
    """Print all."""
    _sides(*found.sides, found.kinship)
    lines = [*_facts(found), *_tensors(found.tensors), *_values(found), *_files(found)]
    width = max((len(what) for _, what, _ in lines), default=0)
    for kind, what, rest in lines:
        emit(f"{kind:<9} {what:<{width}} {rest}".rstrip())
    if measured:
        _norms(found.tensors, measured.totals)
    _sums(found)


def _sides(old: "Side", new: "Side", kinship: "Kinship") -> None:
    names = [safe(side.name) for side in (old, new)]
    steps = [f"step {side.step}" if side.step is not None else "no step" for side in (old, new)]
    for word, side, name, step in zip(("old", "new"), (old, new), names, steps, strict=True):
        columns = name.ljust(max(map(len, names))), step.ljust(max(map(len, steps)))
        emit(f"{word}  {short(side.checkpoint)}  {'  '.join(columns)}  {when(side.saved_at)}")
    if kinship.ancestor is not None:
        emit(_kinship(kinship))


def _kinship(kinship: "Kinship") -> str:
    behind = {"old": kinship.old, "new": kinship.new}
    if not any(behind.values()):
        return "one and the same checkpoint"
    for far, near in (("old", "new"), ("new", "old")):
        if not behind[far]:
            made = f"was made from the {far} one ({safe(kinship.relation)})"
            after = f"comes {count(behind[near], 'checkpoint')} after the {far} one"
            return f"the {near} one {made if kinship.relation else after}"
    later = f"the old one {kinship.old} checkpoints later, the new one {kinship.new}"
    return f"both come from {short(kinship.ancestor or b'')}, {later}"


def _facts(found: "Comparison") -> list[Line]:
    lines: list[Line] = []
    known = [set(groups) for groups in found.recorded]
    alone = not all(known) and any(known)
    if alone:
        kind, side = ("removed", "old") if known[0] else ("added", "new")
        told = ", ".join(found.recorded[0] or found.recorded[1])
        lines.append((kind, "provenance", f"only the {side} one tells what it was made from: {told}"))
    shown = [
        one for one in found.facts if not (alone and one.group in known[0] | known[1] and one.item.kind != "changed")
    ]
    lines += _capped((one.group, one.item.path[:1], _fact(one)) for one in shown)
    differing = {one.group for one in found.facts}
    same = [group for group in found.recorded[0] if group in known[1] and group not in differing]
    return [*lines, ("equal", "provenance", ", ".join(same))] if same else lines


def _fact(one: "GroupChange") -> Line:
    first, *rest = one.item.path
    # A command's options have dots of their own; and a position in the data is told by the name of its value.
    apart = first == "argv" or (one.group == DATA and first != DATA)
    if apart:
        name = " ".join(map(str, [first, dotted(rest)])).rstrip()
    else:
        name = dotted(rest if rest and first == one.group else one.item.path)
    spans = [span_of(side) for side in (one.item.old, one.item.new)] if one.group == DATA else []
    ends = [f"{span[0]}..{span[1]}" for span in spans if span is not None]
    both = " -> ".join(ends) if len(ends) == 2 else _both(one.item)
    return one.item.kind, one.group, f"{safe(name)}: {safe(both)}{_note(one.item)}"


def _both(item: "ItemChange") -> str:
    if item.kind != "changed":
        return shortened(item.new if item.kind == "added" else item.old)
    return shown_pair(item.old, item.new)


def _note(item: "ItemChange") -> str:
    return f" ({safe(item.note)})" if item.note else ""


def _capped(lines: Iterable[tuple[Any, Any, Line]]) -> list[Line]:
    """The first lines of each part, and how many more there are."""
    parts: dict[tuple[Any, Any], list[Line]] = {}
    for group, part, line in lines:
        parts.setdefault((group, part), []).append(line)
    shown: list[Line] = []
    for some in parts.values():
        shown += some[:_LISTED_MAX]
        if len(some) > _LISTED_MAX:
            shown.append(("...", some[0][1], f"and {len(some) - _LISTED_MAX} more, which --json lists"))
    return shown


def _tensors(changes: "Sequence[TensorChange]") -> list[Line]:
    return [(one.kind, "tensor", f"{safe(str(one.key))}{_detail(one)}") for one in changes if one.delta is None]


def _detail(change: "TensorChange") -> str:
    if change.kind == "reshaped" and change.old and change.new:
        before, after = change.old, change.new
        return f": {before.dtype}{list(before.shape)} -> {after.dtype}{list(after.shape)}"
    return f": {change.tiles_changed} of {change.tiles} tiles" if change.tiles_changed is not None else ""


def _values(found: "Comparison") -> list[Line]:
    """Values item by item, and states of ranks together; not those that the facts tell of."""
    from cairn.registry.comparedvalues import owner_of

    lines: list[tuple[Any, Any, Line]] = []
    ranks: dict[tuple[str, str, str], list[ValueDifference]] = {}
    for value in found.values:
        if value.form in _PER_RANK:
            ranks.setdefault((value.kind, _PER_RANK[value.form], str(owner_of(value.key))), []).append(value)
        elif value.key not in found.told:
            lines += [(value.key, value.kind, line) for line in _value(value)]
    return [*(_of_ranks(*key, some) for key, some in ranks.items()), *_capped(lines)]


def _of_ranks(kind: str, what: str, owner: str, values: "Sequence[ValueDifference]") -> Line:
    """States of several ranks on one line: whose they are, and which parts differ."""
    keys = [str(value.key.path[-1]) for value in values if value.key.path]
    whose = ", ".join(keys) if len(keys) <= _RANKS_SHOWN else f"{len(keys)} ranks"
    parts = sorted({str(item.path[1]) for value in values for item in value.items if len(item.path) > 1})
    return kind, what, safe(f"{owner} of {whose}{': ' if parts else ''}{', '.join(parts)}")


def _value(value: "ValueDifference") -> list[Line]:
    name = str(value.key)
    if not value.items:
        return [(value.kind, "value", safe(f"{name}{': ' if value.note else ''}{value.note}"))]
    lines = []
    for item in value.items:
        below = f" {dotted(item.path)}" if item.path else ""
        lines.append((item.kind, "value", f"{safe(name + below)}: {safe(_both(item))}{_note(item)}"))
    return lines


def _files(found: "Comparison") -> list[Line]:
    return [(file.kind, "file", safe(os.fsdecode(file.path))) for file in found.files]


# --- Numbers -------------------------------------------------------------------------------------

_COLUMNS = ("CHANGED", "L2 OLD", "L2 NEW", "L2 DIFFERENCE", "RELATIVE", "LARGEST", "NOT FINITE")


def _norms(changes: "Sequence[TensorChange]", totals: "Sequence[Total]") -> None:
    """Two tables, if anything was measured: by tensor, and what they add up to."""
    rows = [((str(one.key),), one.delta) for one in changes if one.delta is not None]
    sums = [((_part(one), str(one.tensors)), one.delta) for one in totals]
    finite = all(delta.all_finite for _, delta in rows)
    for headings, some in ((("TENSOR",), rows), (("TOTAL OF", "TENSORS"), sums)):
        if some:
            emit("")
            lines = [(*cells, *_cells(delta)) for cells, delta in some]
            columns = (*headings, *_COLUMNS)
            kept = len(columns) - finite
            table(columns[:kept], [line[:kept] for line in lines])
    if rows:
        emit("")


def _part(total: "Total") -> str:
    if total.scope is None:
        return total.component
    group = "" if total.group is None else f" group {total.group}"
    kind = "" if total.kind is None else f" {total.kind}"
    return f"  {total.scope or '.'}{group}{kind}"


def _cells(delta: "Delta") -> tuple[str, ...]:
    changed = f"{delta.changed} of {delta.elements}"
    not_finite = f"{_not_finite(delta.nan_old, delta.inf_old)} -> {_not_finite(delta.nan_new, delta.inf_new)}"
    if delta.norms is None:
        return changed, "-", "-", "-", "-", "-", "-"
    one = delta.norms
    relative = "-" if one.relative is None else _percent(one.relative)
    numbers = (f"{one.old:.4g}", f"{one.new:.4g}", f"{one.difference:.4g}", relative, f"{one.largest:.4g}")
    return changed, *numbers, "" if delta.all_finite else not_finite


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %" if 10 <= fraction < 1e6 else f"{100 * fraction:.3g} %"


def _not_finite(nan: int, inf: int) -> str:
    return ", ".join(f"{number} {name}" for number, name in ((nan, "NaN"), (inf, "inf")) if number) or "none"


def _sums(found: "Comparison") -> None:
    others = f"; {_differing(len(found.values), 'value')}" if found.values else ""
    equal = f"{found.tensors_equal} {'is' if found.tensors_equal == 1 else 'are'} equal"
    emit(f"{_differing(len(found.tensors), 'tensor')}, {equal}{others}; {_differing(len(found.files), 'file')}")
    if found.omissions:
        emit(f"not compared: {', '.join(dict.fromkeys(one.component for one in found.omissions))}")
    emit(
        f"{size(found.bytes_shared)} stored for both, {size(found.bytes_only_old)} for the old one alone, "
        f"{size(found.bytes_only_new)} for the new one alone"
    )


def _differing(number: int, noun: str) -> str:
    return f"{count(number, noun)} {'differs' if number == 1 else 'differ'}"
