"""`cairn verify`: is everything that was committed still there, byte for byte? And if not, can it be mended?"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

import click

from cairn.cli import exits
from cairn.cli.opening import ask_passphrase, store_options, store_place
from cairn.cli.output import count, emit, emit_json, note, safe
from cairn.cli.progress import ProgressBar
from cairn.cli.verified import as_json as facts_of
from cairn.cli.verified import render
from cairn.core.errors import UsageError

if TYPE_CHECKING:
    from cairn.gc.depth import Depth
    from cairn.gc.repair import Mended
    from cairn.gc.report import VerifyReport
    from cairn.gc.scrub_memory import ScrubMemory
    from cairn.registry.registry import Registry

_SAMPLE_PERCENT = 5.0
_DAY_SECONDS = 86400.0


@click.command()
@click.option("--full", is_flag=True, help="Read and open every stored chunk too.")
@click.option(
    "--sampled", type=float, is_flag=False, flag_value=_SAMPLE_PERCENT, default=None, metavar="[PERCENT]",
    help="Open so many of the chunks of each pack, at least one  [default: 5]",
)  # fmt: skip
@click.option("--seed", default="", metavar="TEXT", help="Draw the sample that this seed gave before.")
@click.option("--restart", is_flag=True, help="Do not go on with an interrupted run.")
@click.option(
    "--max-age", default=7.0, metavar="DAYS", show_default=True,
    help="Going on, read again what was read longer ago.",
)  # fmt: skip
@click.option("--record", is_flag=True, help="Tell the log which checkpoints were found whole.")
@click.option("--repair", is_flag=True, help="Mend what is damaged: from this store, and from its remotes.")
@click.option("--from", "sources", multiple=True, metavar="REMOTE", help="To mend from, instead of all remotes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print the names of damaged objects only.")
@store_options
def command(
    full: bool, sampled: float | None, seed: str, restart: bool, max_age: float, record: bool, repair: bool,
    sources: tuple[str, ...], as_json: bool, quiet: bool,
) -> int:  # fmt: skip
    """Check the store: log, keys, manifests, and that all they need is there; with --full, every stored byte.

    Changes nothing without --repair or --record. Tips of branches are read first, then tags, then the rest, newest
    first; interrupted, --full and --sampled go on where they were. Exit code 6 says that something is damaged or
    missing.
    """
    if full and sampled is not None:
        raise UsageError("--full reads what --sampled would", hint="name one of them")
    if seed and sampled is None:
        raise UsageError("--seed draws a sample", hint="add --sampled")
    if not max_age >= 0:
        raise UsageError(f"{max_age} is no age", hint="name days, from 0")
    if sampled is not None and not 0 < sampled <= 100:
        raise UsageError(f"{sampled} is no percentage", hint="name one above 0, up to 100")
    if sources and not repair:
        raise UsageError("--from says where to mend from", hint="add --repair")
    part = 1.0 if full else 0.0 if sampled is None else sampled / 100
    told = None if quiet or as_json else lambda text: note(f"found: {text}")
    run = _Run(part, seed, restart, max_age * _DAY_SECONDS, record, repair, sources, told)
    with ProgressBar(quiet or as_json) as progress:
        try:
            report = run.verify(progress)
        except KeyboardInterrupt:
            if part:
                note("the same command goes on where this one was; what it had read and found whole is noted")
            raise
    if as_json:
        emit_json(facts_of(report, run.mended, run.recorded))
    elif quiet:
        for name in dict.fromkeys(problem.object for problem in report.errors):
            emit(name)
    else:
        render(report, run.mended, repair)
        if record:
            note(f"recorded as whole: {count(run.recorded, 'checkpoint')}")
    return exits.OK if report.ok else exits.INTEGRITY


class _Run:
    """One call of the command."""

    def __init__(
        self, part: float, seed: str, restart: bool, max_age_seconds: float, record: bool, repair: bool,
        sources: tuple[str, ...], told: Callable[[str], None] | None,
    ) -> None:  # fmt: skip
        self._told = told
        self._part, self._seed, self._restart, self._max_age = part, seed, restart, max_age_seconds
        self._record, self._repair, self._sources = record, repair, sources
        self.mended: tuple[Mended, ...] = ()
        self.recorded = 0

    def verify(self, progress: ProgressBar) -> "VerifyReport":
        """Check the chosen store, also one that is too damaged to open."""
        from cairn.gc.scrub_open import verify_store

        return verify_store(*store_place(), self._part >= 1, progress, lambda one: self._work(one, progress))

    def _work(self, registry: "Registry", progress: ProgressBar) -> "VerifyReport":
        from cairn.gc.record import record

        with _remembering(registry, self._max_age) as memory:
            depth = self._depth(registry, memory)
            report = self._scrub(registry, depth, memory if self._part else None, progress)
            if self._part:
                memory.finish()
        if self._record:
            self.recorded = record(registry, report)
        return report

    def _depth(self, registry: "Registry", memory: "ScrubMemory") -> "Depth":
        from cairn.gc.depth import Depth

        if not self._part:
            return Depth()
        depth = memory.begin(Depth(self._part, self._seed), self._restart)
        if depth.seed or self._part >= 1:
            return depth
        return memory.begin(Depth(self._part, registry.opened.entropy.token(6).hex()), True)

    def _scrub(
        self, registry: "Registry", depth: "Depth", memory: "ScrubMemory | None", progress: ProgressBar
    ) -> "VerifyReport":
        from cairn.gc.repair import Repair
        from cairn.gc.scrub import verify

        if not self._repair:
            return verify(registry, progress=progress, depth=depth, memory=memory, told=self._told)
        with ExitStack() as stack:
            sources = {name: stack.enter_context(closing(one)) for name, one in _open_sources(registry, self._sources)}
            done = Repair(registry, sources, depth, progress, memory, self._told).run()
        self.mended = done.mended
        return done.after


@contextmanager
def _remembering(registry: "Registry", max_age_seconds: float) -> "Iterator[ScrubMemory]":
    from cairn.gc.scrub_memory import ScrubMemory

    opened = registry.opened
    with closing(
        ScrubMemory(opened.home.scrub_file(opened.store), opened.store, opened.clock, max_age_seconds)
    ) as memory:
        yield memory


def _open_sources(registry: "Registry", named: tuple[str, ...]) -> "Iterator[tuple[str, Registry]]":
    """The named remotes; without a name, all that can be opened."""
    from cairn.core.errors import CairnError
    from cairn.registry.remotes import Remotes
    from cairn.registry.stores import open_remote
    from cairn.registry.sync import check_same_tenant

    remotes = Remotes(registry.opened)
    for name in named or remotes.all():
        remote = remotes.find(name)
        try:
            other = open_remote(remote.url, key_file=remote.key_path, ask=ask_passphrase)
            try:
                check_same_tenant(other, registry)
            except CairnError:
                other.close()
                raise
        except CairnError as error:
            if named:
                raise
            note(f"note: remote {safe(name)} is left out: {safe(error.message)}")
        else:
            yield name, other
