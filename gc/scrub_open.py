"""Verifying a store that may be too damaged to open."""

from collections.abc import Callable
from contextlib import closing

from cairn.core.errors import CairnError, IntegrityError
from cairn.core.progress import Progress
from cairn.gc.orphans import report_orphans
from cairn.gc.report import NOBODY, Findings, VerifyReport
from cairn.gc.roots import named_objects
from cairn.gc.scrub import verify
from cairn.gc.scrub_keys import check_opening
from cairn.gc.scrub_log import check_log
from cairn.registry.localfiles import KeyHome
from cairn.registry.opened import KeySource, OpenStore, open_store
from cairn.registry.registry import Registry
from cairn.store.backends.contract import Backend


def verify_store(
    backend: Backend,
    home: KeyHome,
    source: KeySource,
    full: bool,
    progress: Progress | None = None,
    work: Callable[[Registry], VerifyReport] | None = None,
) -> VerifyReport:
    """Open a store and check it; damage that keeps it from opening is reported too.

    Args:
        work: what to do with a store that opens; by default, check it.

    Raises:
        NotAStore, NotAllowed, WrongKey: it does not open, and not for damage.
    """
    try:
        opened = open_store(backend, home, source)
    except CairnError as error:
        return _unopened(error, backend, source, full)
    try:
        registry = Registry(opened)
    except IntegrityError as error:
        return _unfolded(error, opened, full)
    with closing(registry):
        return work(registry) if work is not None else verify(registry, full, progress)


def _unopened(error: CairnError, backend: Backend, source: KeySource, full: bool) -> VerifyReport:
    """What keeps a store from opening: a damaged object, or else the error itself."""
    if error.retryable:
        raise error
    findings = Findings()
    check_opening(backend, source.passphrase is not None, findings)
    if not findings.problems:
        if not isinstance(error, IntegrityError):
            raise error
        findings.add("", error.message)
    return _failed(findings, full)


def _unfolded(error: IntegrityError, opened: OpenStore, full: bool) -> VerifyReport:
    """What keeps the log from being folded."""
    findings = Findings()
    state = check_log(opened, opened.home.remembered_head(opened.store), lambda n: [NOBODY], findings)
    if findings.problems:
        leftovers = {listed.name for listed in opened.backend.list("objects")} - named_objects(state)
        report_orphans(opened, state, leftovers, findings)
        findings.notes.append(f"only the log was checked: {error.message}")
    else:
        findings.add("log", error.message)
    return _failed(findings, full)


def _failed(findings: Findings, full: bool) -> VerifyReport:
    return VerifyReport(False, full, 0, 0, findings.objects, findings.problems, tuple(findings.notes))
