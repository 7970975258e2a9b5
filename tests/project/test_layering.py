"""Who may import whom, and where the outside world may be touched.

The tables below are section "layers" of `docs/design.md`. Every reference counts: inside functions, under
`TYPE_CHECKING`, relative, through an alias, and `import_module("...")` with a constant.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A layer, and the layers it may import besides itself. "" is the facade, `src/cairn/__init__.py`.
LAYERS = {
    "core": set[str](),
    "store": {"core"},
    "manifests": {"core"},
    "registry": {"core", "store", "manifests"},
    "loader": {"core", "store", "manifests"},
    "gc": {"core", "registry", "store", "manifests"},
    "training": {"core", "registry", "loader", "store", "manifests"},
    "formats": {"core", "manifests"},
}
LAYERS["workspace"] = set(LAYERS)
LAYERS[""] = set(LAYERS)
LAYERS["cli"] = set(LAYERS)

# What `python -m cairn` runs belongs to the command line.
ENTRY = "__main__.py"


@dataclass(frozen=True, slots=True)
class Confined:
    """Names that only some places may use: `places` are files, or folders that end in a slash."""

    rule: str
    names: tuple[str, ...]
    places: tuple[str, ...]

    def breach(self, place: str, name: str) -> str:
        """The confined name that `name` is or belongs to, if `place` may not use it; else an empty string."""
        if any(place == p or (p.endswith("/") and place.startswith(p)) for p in self.places):
            return ""
        return next((n for n in self.names if name == n or name.startswith(f"{n}.")), "")


CONFINED = (
    Confined("torch", ("torch",), ("training/", "formats/", "loader/placement.py")),
    Confined("print", ("builtins.print", "sys.stdout", "sys.stderr", "click", "rich"), ("cli/",)),
    Confined("environment", ("os.environ", "os.environb", "os.getenv", "os.putenv"), ("cli/", "core/settings.py")),
    Confined(
        "exit",
        ("sys.exit", "os._exit", "builtins.exit", "builtins.quit", "builtins.SystemExit"),
        ("cli/", "training/atexit.py"),
    ),
    Confined(
        "clock",
        (
            *("time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.sleep"),
            *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"),
        ),
        ("core/clock.py",),
    ),
    Confined("randomness", ("os.urandom", "secrets", "uuid.uuid1", "uuid.uuid4"), ("core/clock.py",)),
    # A checkpoint carries the states of these generators.
    Confined("randomness", ("random", "numpy.random"), ("core/clock.py", "training/rng.py")),
)
# Everywhere but in tests, which make hostile files.
PICKLE = Confined("pickle", ("pickle", "_pickle", "cloudpickle", "dill", "shelve"), ("tests/",))


@dataclass(frozen=True, slots=True)
class Reference:
    """A dotted name that a module uses, e.g. `os.environ` after `from os import environ as env`."""

    name: str
    line: int
    imported: bool


def references(tree: ast.Module, package: str) -> Iterator[Reference]:
    """All dotted names that `tree` imports or uses; `package` is what its relative imports start from."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        for name, bound, meaning in imports(node, package):
            aliases[bound] = meaning
            yield Reference(name, node.lineno, imported=True)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            head, *rest = dotted(node).split(".")
            start = aliases.get(head, f"builtins.{head}" if not rest else "")
            if start:
                yield Reference(".".join([start, *rest]), node.lineno, imported=False)


def imports(node: ast.AST, package: str) -> Iterator[tuple[str, str, str]]:
    """Triples of what is imported, the name that is bound here, and what that name then means."""
    match node:
        case ast.Import():
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield (alias.name, alias.asname, alias.name) if alias.asname else (alias.name, top, top)
        case ast.ImportFrom():
            start = package.split(".")
            parts = [*start[: len(start) - node.level + 1]] if node.level else []
            parts += [node.module] if node.module else []
            for alias in node.names:
                name = ".".join([*parts, alias.name])
                yield name, alias.asname or alias.name, name
        case ast.Call(args=[ast.Constant(value=str(name)), *_]):
            if dotted(node.func).endswith(("import_module", "__import__")):
                yield name, "", ""


def dotted(node: ast.AST) -> str:
    """`a.b.c` for a chain of attributes on a name, else an empty string."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            head = dotted(value)
            return f"{head}.{attr}" if head else ""
    return ""


def crosses_layers(place: str, reference: Reference) -> str:
    """What is wrong with importing this there; empty if nothing is."""
    root, _, rest = reference.name.partition(".")
    if root != "cairn" or not reference.imported:
        return ""
    layer = place.partition("/")[0] if "/" in place else ""
    layer = "cli" if place == ENTRY else layer
    target = rest.partition(".")[0]
    target = target if target in LAYERS else ""
    if layer not in LAYERS:
        return f"{layer}/ has no row in the table of layers"
    if target == layer or target in LAYERS[layer]:
        return ""
    return f"{layer or 'the facade'} may not import {f'cairn.{target}' if target else 'the facade'}"


def layering_findings(package: Path) -> list[str]:
    """Breaches in the import package `package`, whose folders may be links."""
    found = []
    for path in modules(package):
        place = path.relative_to(package).as_posix()
        inside = ".".join(["cairn", *path.relative_to(package).parent.parts])
        for reference in references(ast.parse(path.read_bytes()), inside):
            where = f"{place}:{reference.line}: "
            if wrong := crosses_layers(place, reference):
                found.append(f"{where}[layers] {wrong}")
            for confined in CONFINED:
                if name := confined.breach(place, reference.name):
                    found.append(f"{where}[{confined.rule}] {name} belongs in {' '.join(confined.places)}")
    return sorted(set(found))


def pickle_findings(root: Path) -> list[str]:
    """Modules outside `tests/` that import a pickle."""
    found = []
    for path in modules(root):
        place = path.relative_to(root).as_posix()
        for reference in references(ast.parse(path.read_bytes()), ""):
            if reference.imported and (name := PICKLE.breach(place, reference.name)):
                found.append(f"{place}:{reference.line}: [pickle] {name} runs whatever a file says")
    return sorted(set(found))


def modules(root: Path) -> Iterator[Path]:
    """Python files below `root`, through linked folders directly in it, not in hidden ones."""
    yield from sorted(root.glob("*.py"))
    for folder in sorted(root.iterdir()):
        if folder.is_dir() and not folder.name.startswith("."):
            yield from sorted(folder.rglob("*.py"))


def test_layering_holds() -> None:
    assert list(modules(ROOT / "src/cairn")), "no modules found: the test looks in the wrong place"
    assert layering_findings(ROOT / "src/cairn") == []


def test_layering_admits_no_pickle() -> None:
    assert pickle_findings(ROOT) == []


# --- Each rule finds its breach, and keeps still where the same line is right. ----------------

BREACHES = [
    ("layers", "store/pack.py", "from cairn.manifests import schema", "gc/plan.py"),
    ("layers", "manifests/tiling.py", "import cairn.store.pack", "loader/plan.py"),
    ("layers", "loader/plan.py", "def f():\n    from cairn.registry.log import Log", "gc/plan.py"),
    ("layers", "loader/plan.py", "from cairn import registry", "gc/plan.py"),
    ("layers", "formats/torch.py", "from ..store import pack", "loader/plan.py"),
    ("layers", "formats/hub/read.py", "from ...store import pack", "formats/hub/read.py:from ..parsed import x"),
    ("layers", "registry/log.py", "if TYPE_CHECKING:\n    from cairn.gc.plan import Plan", "workspace/a.py"),
    ("layers", "core/ids.py", "import_module('cairn.store')", "store/pack.py"),
    ("layers", "core/ids.py", "import cairn", "cli/main.py"),
    ("layers", "workspace/commit.py", "from cairn.cli import exits", "cli/main.py"),
    ("layers", "__init__.py", "from cairn.cli.main import main", "cli/__main__.py"),
    ("layers", "elsewhere/a.py", "from cairn.core import ids", "gc/a.py"),
    ("torch", "loader/plan.py", "import torch.distributed as dist", "loader/placement.py"),
    ("torch", "gc/plan.py", "def f():\n    from torch import Tensor", "training/snapshot.py"),
    ("print", "store/pack.py", "print('x')", "cli/ls.py"),
    ("print", "store/pack.py", "import sys\nsys.stderr.write('x')", "cli/ls.py"),
    ("print", "store/pack.py", "import click", "cli/ls.py"),
    ("environment", "store/pack.py", "import os\nx = os.environ['X']", "core/settings.py"),
    ("environment", "store/pack.py", "from os import getenv as g", "cli/main.py"),
    ("exit", "gc/sweep.py", "import sys as s\ns.exit(3)", "cli/main.py"),
    ("exit", "gc/sweep.py", "raise SystemExit(3)", "cli/main.py"),
    ("clock", "registry/log.py", "import time\ntime.sleep(1)", "core/clock.py"),
    ("clock", "registry/log.py", "from time import monotonic", "core/clock.py"),
    ("clock", "registry/log.py", "from datetime import datetime as d\nd.now()", "core/clock.py"),
    ("randomness", "store/pack.py", "import os\nos.urandom(12)", "core/clock.py"),
    ("randomness", "store/pack.py", "import secrets", "core/clock.py"),
    ("randomness", "loader/plan.py", "import random", "training/rng.py"),
    ("randomness", "loader/plan.py", "import numpy as np\nnp.random.default_rng()", "training/rng.py"),
]


def synthetic(root: Path, place: str, source: str) -> Path:
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return root


@pytest.mark.parametrize(("rule", "place", "source", "good"), BREACHES)
def test_layering_rule_catches_its_breach(tmp_path: Path, rule: str, place: str, source: str, good: str) -> None:
    (finding,) = layering_findings(synthetic(tmp_path / "bad", place, source))
    assert finding.startswith(f"{place}:") and f"[{rule}]" in finding
    good_place, _, good_source = good.partition(":")
    assert layering_findings(synthetic(tmp_path / "good", good_place, good_source or source)) == []


def test_layering_rule_leaves_look_alikes_alone(tmp_path: Path) -> None:
    source = "import time\nimport os.path\ntime.perf_counter()\nself.print()\nrandom = 1\nrandom.x\nlog.exit()\n"
    assert layering_findings(synthetic(tmp_path, "store/pack.py", source)) == []


def test_layering_rule_follows_links(tmp_path: Path) -> None:
    synthetic(tmp_path, "gc/plan.py", "print()")
    (tmp_path / "src/cairn").mkdir(parents=True)
    (tmp_path / "src/cairn/gc").symlink_to("../../gc")
    assert len(layering_findings(tmp_path / "src/cairn")) == 1


@pytest.mark.parametrize(
    "source", ["import pickle", "def f():\n    from pickle import loads", "import cloudpickle as c"]
)
def test_layering_rule_catches_pickle(tmp_path: Path, source: str) -> None:
    assert pickle_findings(synthetic(tmp_path, "tests/formats/test_x.py", source)) == []
    assert len(pickle_findings(synthetic(tmp_path, "benchmarks/run.py", source))) == 1
