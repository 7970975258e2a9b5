"""What a scrub finds."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from cairn.core.errors import CairnError
from cairn.core.ids import CheckpointId, ModelId

# What is affected: model and checkpoint in hexadecimal; empty where there is none.
Target = tuple[str, str]
NOBODY: Target = ("", "")


@dataclass(frozen=True, slots=True)
class Problem:
    """One object that is not as it was committed, and one checkpoint that this affects.

    Args:
        object: name in the backend.
        model, checkpoint: hexadecimal ids of what is affected; empty where nothing is, or nobody can tell.
        what: what is wrong, and which tensors and files it hits.
    """

    object: str
    model: str
    checkpoint: str
    what: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The outcome of a scrub. `chunks` counts distinct chunks and pages, `notes` are no errors.

    Args:
        full, depth, seed: what was read of the packs; of a sample, what it was drawn by.
        superseded: damage of packs that nobody needs any more: better copies serve, and collection removes them.
        chunks_opened, bytes_read: what was opened and read in packs.
        packs_remembered: packs that an interrupted run had read.
        chunks_unnamed: chunks whose digest stands in no readable manifest: only their headers could be checked.
        leftover_objects, leftover_bytes: objects that no entry names, which interrupted writers left.
        names: names of affected models, by id, where their keys open.
        deleted: ids of affected checkpoints that are deleted and can be restored.
        whole: model and checkpoint of all that is here in full and that nothing hurts.
    """

    ok: bool
    full: bool
    checkpoints: int
    chunks: int
    objects: int
    errors: tuple[Problem, ...]
    notes: tuple[str, ...] = ()
    depth: str = "quick"
    seed: str = ""
    superseded: tuple[Problem, ...] = ()
    chunks_opened: int = 0
    bytes_read: int = 0
    packs_remembered: int = 0
    chunks_unnamed: int = 0
    leftover_objects: int = 0
    leftover_bytes: int = 0
    names: dict[str, str] = field(default_factory=dict)
    deleted: frozenset[str] = frozenset()
    whole: tuple[tuple[ModelId, CheckpointId], ...] = ()


class Findings:
    """Collects problems; one damaged object must not hide the next."""

    def __init__(self) -> None:
        self._problems: dict[Problem, None] = {}
        self.notes: list[str] = []
        self.objects = 0
        self._lock = threading.Lock()

    def add(self, name: str, what: str, targets: Iterable[Target] = (NOBODY,)) -> None:
        """Record a problem of an object, once for each target; without a target, once for nobody."""
        with self._lock:
            for model, checkpoint in list(targets) or [NOBODY]:
                self._problems[Problem(name, model, checkpoint, what)] = None

    def about(self, name: str, targets: Iterable[Target] = (NOBODY,)) -> "About":
        """Check one object in a `with` block: an error inside becomes its problem, and the scrub goes on."""
        with self._lock:
            self.objects += 1
        return About(self, name, tuple(targets))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All problems in the order in which they were found, none twice."""
        return tuple(self._problems)


@dataclass(frozen=True, slots=True)
class About:
    """Turns an error into a problem of one object.

    Passing conditions of the storage (`retryable`) say nothing about the object and go through.
    """

    findings: Findings
    name: str
    targets: tuple[Target, ...]

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, CairnError) or error.retryable:
            return False
        self.findings.add(self.name, error.message, self.targets)
        return True


def few(names: Iterable[str], most: int = 3) -> str:
    """The first names, then a count."""
    listed = list(names)
    rest = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {rest} more" if rest > 0 else "")
