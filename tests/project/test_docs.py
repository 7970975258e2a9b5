"""What the documents say is so: commands, options, codes, limits, links and tests that they name."""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

from cairn.cli import app, exits
from cairn.core import errors, limits
from cairn.manifests.dtypes import BITS
from cairn.manifests.tiling import grid
from tests.project.test_layering import LAYERS
from tests.project.test_tidy import project_files

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FILES = project_files(ROOT)
PAGES = [path for path in FILES if path.suffix == ".md"]
FOLDERS = {path.relative_to(ROOT).parts[0] for path in FILES if len(path.relative_to(ROOT).parts) > 1}

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
CODE_BLOCK = re.compile(r"^(?:```.*?^```|(?: {4}.*\n)+)", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
TEST_PATH = re.compile(r"tests/[\w/]+\.py(?:::\w+)*")
TEST_FILE = re.compile(r"\btest_\w+\.py\b")
TEST_NAME = re.compile(r"\btest_\w+")
TEST_DEFINITION = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)
OPTION = re.compile(r"--?[a-z][a-z-]*")
AMOUNT = re.compile(r"(\d+)(?: (KiB|MiB|GiB))?")
UNITS = {None: 1, "KiB": limits.KIB, "MiB": limits.MIB, "GiB": limits.GIB}


def page(name: str) -> str:
    """Text of a page below `docs/`."""
    return (DOCS / name).read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    """A section of level two whose heading names `title`, up to the next one."""
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        if title in part.splitlines()[0].split(", "):
            return part
    return ""


def rows(text: str) -> Iterator[list[str]]:
    """Cells of all table rows."""
    for line in text.splitlines():
        if line.startswith("| ") and line.endswith("|"):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def first_codes(text: str) -> dict[str, list[str]]:
    """Rows whose first cell is one word of code, by that word."""
    return {row[0].strip("`"): row for row in rows(text) if re.fullmatch(r"`[^`]+`", row[0])}


def slug(heading: str) -> str:
    """The anchor that a heading gets."""
    kept = "".join(c for c in heading.lower() if c.isalnum() or c in " -_")
    return kept.strip().replace(" ", "-")


# --- Links, tests and paths --------------------------------------------------------------------


def broken_links(path: Path, text: str) -> list[str]:
    """Relative links that lead nowhere."""
    broken = []
    for target in LINK.findall(CODE_BLOCK.sub("", text)):
        place, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        found = (path.parent / place).resolve() if place else path
        lacks_anchor = anchor and anchor not in map(
            slug, HEADING.findall(found.read_text(encoding="utf-8") if found.is_file() else "")
        )
        if not found.exists() or lacks_anchor:
            broken.append(target)
    return broken


def unknown_tests(text: str, defined: dict[str, set[str]]) -> list[str]:
    """Tests and test files that a text names and that do not exist; `defined` has names by file."""
    everywhere, unknown = set().union(*defined.values()), []
    for mention in TEST_PATH.findall(text):
        path, *names = mention.split("::")
        if path not in defined or any(name not in defined[path] for name in names):
            unknown.append(mention)
    files = {path.rpartition("/")[2] for path in defined}
    for code in CODE.findall(text):
        rest = TEST_PATH.sub("", code)
        unknown += [name for name in TEST_FILE.findall(rest) if name not in files]
        bare = TEST_NAME.findall(TEST_FILE.sub("", rest))
        unknown += [name for name in bare if name not in everywhere and not name.endswith(("_", "_test"))]
    return unknown


def defined_tests() -> dict[str, set[str]]:
    """Names of tests by file, for all Python below `tests/`."""
    files = [path for path in FILES if path.relative_to(ROOT).parts[0] == "tests" and path.suffix == ".py"]
    return {
        path.relative_to(ROOT).as_posix(): set(TEST_DEFINITION.findall(path.read_text(encoding="utf-8")))
        for path in files
    }


def unknown_paths(text: str) -> list[str]:
    """Words of code that look like a file or folder of the project and are none."""
    words = (word for word in CODE.findall(CODE_BLOCK.sub("", text)) if re.fullmatch(r"[\w.-]+/[\w./-]*", word))
    return [word for word in words if word.split("/")[0] in FOLDERS and not (ROOT / word).exists()]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_tests_and_paths_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert broken_links(path, text) == []
    assert unknown_tests(text, defined_tests()) == []
    # Pages elsewhere may speak of what is planned.
    assert unknown_paths(text) == [] or not path.is_relative_to(DOCS)


def test_wrong_mentions_are_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A heading: of sorts\n")
    here = tmp_path / "here.md"
    assert broken_links(here, "[a](there.md) [b](there.md#a-heading-of-sorts) [c](https://example.org/x)") == []
    assert broken_links(here, "[a](gone.md) [b](there.md#other)") == ["gone.md", "there.md#other"]
    defined = {"tests/a/test_b.py": {"test_c"}}
    assert unknown_tests("`tests/a/test_b.py::test_c`, `test_c`, `test_b.py`", defined) == []
    assert unknown_tests("`tests/a/test_b.py::test_d`, `test_e`", defined) == ["tests/a/test_b.py::test_d", "test_e"]
    assert unknown_tests("`test_f.py`", defined) == ["test_f.py"]
    assert unknown_paths("`core/limits.py`, `objects/x`, `tests/project/`") == []
    assert unknown_paths("`core/nothing.py`") == ["core/nothing.py"]


# --- Commands and codes ------------------------------------------------------------------------


def options_of(command: click.Command) -> set[str]:
    """Spellings of a command's options."""
    return {
        name for one in command.params if isinstance(one, click.Option) for name in (*one.opts, *one.secondary_opts)
    }


def documented_options(text: str) -> set[str]:
    """Options in the first cells of a section's tables."""
    codes = [code for row in rows(text) for code in CODE.findall(row[0])]
    return {word for code in codes for word in OPTION.findall(code) if code.startswith("-")}


def commands() -> dict[str, click.Command]:
    """All commands by name."""
    found: dict[str, click.Command] = {}
    for name in app.COMMANDS:
        command: click.Command = import_module(f"cairn.cli.{app.module_of(name)}").command
        below = command.commands if isinstance(command, click.Group) else {}
        found |= {f"{name} {one}": below[one] for one in below} or {name: command}
    return found


def test_every_command_and_option_is_in_the_reference() -> None:
    text = page("cli.md")
    shared = documented_options(section(text, "Options of every command"))
    assert shared == {"--store", "--key-file", "-h", "--help"}
    for name, command in commands().items():
        told = section(text, name)
        assert documented_options(told) == options_of(command) - shared, name
        assert f"    cairn {name} [OPTIONS]" in told, f"usage of {name}"


# Commands that change something, and make nothing that has an id of its own.
ACTS = {
    "remote add", "remote remove", "trust add", "trust remove", "delete approve", "delete confirm", "hold lift",
    "receipt create", "gc cancel", "gc quarantine", "audit key", "members add", "members role", "members remove",
    "grant", "revoke", "keys rotate", "keys rewrap", "keys export-recovery",
}  # fmt: skip
# What they print is JSON in any case, of a form that others have defined or read.
FORMS = {"attest export", "audit prove"}
# They tell of figures, of facts or of a plan of bytes: there are no ids to print alone.
WITHOUT_IDS = {
    "diff", "report", "stats", "gc plan", "gc apply", "members person",
    "audit head", "audit export", "audit gather", "audit policy",
}  # fmt: skip


def test_json_and_quiet_follow_one_rule() -> None:
    found = {name: options_of(command) for name, command in commands().items()}
    assert {name for name, options in found.items() if "--json" not in options} == ACTS | FORMS
    assert {name for name, options in found.items() if "--quiet" not in options} == ACTS | FORMS | WITHOUT_IDS
    assert {name for name, options in found.items() if ("--quiet" in options) != ("-q" in options)} == set()


@pytest.mark.parametrize("name", ["cli.md", "operations.md"])
def test_every_exit_code_is_documented(name: str) -> None:
    codes = {value for key, value in vars(exits).items() if key.isupper() and isinstance(value, int)}
    assert {int(row[0]) for row in rows(section(page(name), "Exit codes")) if row[0].isdigit()} == codes


def test_every_error_code_is_documented_with_its_exit_code() -> None:
    def tree(kind: type[errors.CairnError]) -> Iterator[type[errors.CairnError]]:
        yield kind
        for below in kind.__subclasses__():
            if below.__module__ == errors.__name__:
                yield from tree(below)

    actual = {kind.code: str(exits.exit_code(kind("x"))) for kind in tree(errors.CairnError)}
    documented = {code: row[1] for code, row in first_codes(section(page("operations.md"), "Error codes")).items()}
    assert documented == actual


def test_every_environment_variable_is_documented() -> None:
    named = set(re.findall(r'environ\.get\("(CAIRN_\w+)"\)', (ROOT / "core/settings.py").read_text(encoding="utf-8")))
    assert named and named <= set(CODE.findall(page("operations.md")))


# --- The format --------------------------------------------------------------------------------


def test_limits_are_those_of_the_code() -> None:
    documented = {}
    for name, row in first_codes(section(page("format/v1.md"), "17. Limits")).items():
        match = AMOUNT.fullmatch(row[1])
        assert match, f"{name}: {row[1]!r} is no amount"
        documented[name] = int(match[1]) * UNITS[match[2]]
    assert documented == {name: getattr(limits, name) for name in documented}
    mentioned = {code for code in CODE.findall(page("format/v1.md")) if re.fullmatch(r"[A-Z]+(_[A-Z]+)+", code)}
    assert mentioned == documented.keys()


def test_element_types_are_those_of_the_code() -> None:
    documented = {
        name: int(row[0])
        for row in rows(section(page("format/v1.md"), "15. Pages and tensors"))
        if row[0].isdigit()
        for name in CODE.findall(row[1])
    }
    assert documented == BITS


def test_worked_grids_are_those_of_the_code() -> None:
    checked = 0
    for row in rows(page("format/v1.md")):
        if row[0] in BITS and row[1].startswith("("):
            shape = tuple(int(length) for length in re.findall(r"\d+", row[1]))
            cells = grid(row[0], shape)
            counts = [int(count) for count in re.findall(r"\d+", row[4])] or list(cells.counts)
            sizes = [int(size) for size in re.findall(r"\d+", row[5])]
            assert counts == list(cells.counts), row
            assert {cells.tile_bytes(number) for number in range(cells.tile_count)} == set(sizes), row
            checked += 1
    assert checked >= 8


# --- Other tables ------------------------------------------------------------------------------


def test_layers_are_those_that_are_enforced() -> None:
    for name, row in first_codes(section(page("design.md"), "Layers")).items():
        allowed = {"nothing": set(), "all of the above": None, "everything": None}.get(
            row[2], set(CODE.findall(row[2]))
        )
        assert allowed is None or allowed | {"core"} == LAYERS[name] | {"core"}, name
    packages = {
        path.parent.name for path in ROOT.glob("*/__init__.py") if (ROOT / "src/cairn" / path.parent.name).exists()
    }
    assert packages - {"training"} <= first_codes(section(page("design.md"), "Layers")).keys()


def test_every_case_that_is_tested_is_listed() -> None:
    """A test named after a public report stands in the row of that report, and each row has a test or a reason."""
    listed = {row[0]: row for row in rows(page("cases.md")) if re.fullmatch(r"[TSRADXMH]\d\d", row[0])}
    for path, names in defined_tests().items():
        for name in names:
            for case in re.findall(r"_([TSRADXMH]\d\d)(?=_)", name):
                assert case in listed, f"{path}::{name}"
    assert [case for case, row in listed.items() if not CODE.search(row[2]) and not row[3]] == []
