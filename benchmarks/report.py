"""Tables of results, for people; the same numbers as JSON are made by `run.py`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from contenders import CACHED, COLD, FIRST, REPEATED, REREAD, RESTORE, STEPS
from measure import Run

# Step name -> runs, by contender.
Results = dict[str, dict[str, list[Run]]]


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as long a step of another contender takes as a step of Cairn."""

    label: str
    cairn: str
    other: str
    theirs: str


# The labels say which work is set against which: the third row sets reading nothing against reading everything.
_COMPARED = (
    ("first commit", FIRST, FIRST),
    ("unchanged, both read all content, both with cold caches", COLD, COLD),
    ("unchanged, Cairn by its file-digest cache (reads nothing) against {} reading all content", CACHED, REREAD),
    ("unchanged, both by their caches of file stamps (neither reads content)", CACHED, CACHED),
    ("unchanged, Cairn's remembered answer against {} by its cache of file stamps", REPEATED, CACHED),
    ("restore", RESTORE, RESTORE),
)


def ratios(others: Iterable[str]) -> list[Ratio]:
    """Every comparison that is made."""
    names = list(others)
    return [Ratio(label.format(other), mine, other, theirs) for label, mine, theirs in _COMPARED for other in names]


def value(results: Results, ratio: Ratio) -> float | None:
    """Quotient of the medians, None where one is missing."""
    mine = results.get("cairn", {}).get(ratio.cairn)
    theirs = results.get(ratio.other, {}).get(ratio.theirs)
    if not mine or not theirs:
        return None
    return seconds(theirs) / seconds(mine)


def seconds(runs: Sequence[Run]) -> float:
    """Median wall time."""
    return median(run.seconds for run in runs)


def peak(runs: Sequence[Run]) -> int:
    """Largest peak of all runs: memory is a bound, not an average."""
    return max(run.peak_bytes for run in runs)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns padded to their widest cell; the first is left-aligned, the others right."""
    lines = [tuple(headings), *map(tuple, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    lines.insert(1, tuple("-" * width for width in widths))
    return "\n".join(_line(line, widths) for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join((first.strip().ljust(widths[0]), *others))


def steps_table(results: Results) -> str:
    """Median seconds of every step."""
    names = list(results)
    rows = [(step, *(_seconds_cell(results[name].get(step)) for name in names)) for step in STEPS]
    return table(("seconds, median (fastest)", *names), rows)


def memory_table(results: Results) -> str:
    """Peak memory of every step."""
    names = list(results)
    rows = [(step, *(_peak_cell(results[name].get(step)) for name in names)) for step in STEPS]
    return table(("peak resident memory, MiB", *names), rows)


def ratio_table(results: Results, compared: Iterable[Ratio]) -> str:
    """How many times as fast Cairn is."""
    rows = []
    for ratio in compared:
        times = value(results, ratio)
        if times is not None:
            rows.append((ratio.label, ratio.other, f"{times:.2f}"))
    return table(("times as fast as the other", "other", "ratio"), rows)


def _seconds_cell(runs: Sequence[Run] | None) -> str:
    return f"{seconds(runs):.3f} ({min(run.seconds for run in runs):.3f})" if runs else "-"


def _peak_cell(runs: Sequence[Run] | None) -> str:
    return f"{peak(runs) / 2**20:.0f}" if runs else "-"


def binary(count: int) -> str:
    """Bytes in binary units, three digits."""
    return (
        f"{count / 2**20:.3g} MiB" if count >= 2**20 else f"{count / 2**10:.3g} KiB" if count >= 2**10 else f"{count} B"
    )
