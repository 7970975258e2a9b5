"""Every public fault report has a test, or a row that says why not and who owes it."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.cases.ids import IDS

TESTS = Path(__file__).parents[1]
README = Path(__file__).with_name("README.md")
# A test may stand for several cases: test_X01_X36_no_entry_point_runs_a_pickle
_NAME = re.compile(r"test((?:_[TSRADXMH]\d\d)+)_[a-z]")
_ROW = re.compile(r"\| ([TSRADXMH]\d\d) \| (.+) \| (.+) \|")


def ids_of_tests(paths: Iterable[Path]) -> set[str]:
    """Ids in the names of test functions."""
    found: set[str] = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef) and (match := _NAME.match(node.name)):
                found.update(match[1].split("_")[1:])
    return found


def rows(text: str, heading: str) -> list[str]:
    """Ids of the table under a heading; each row must say all that it has columns for."""
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [match[1] for match in _ROW.finditer(section)]


def findings(ids: list[str], tested: set[str], excused: list[str]) -> list[str]:
    """What is wrong with the table."""
    wrong = [f"{one}: no test and no reason" for one in ids if one not in tested and one not in excused]
    wrong += [f"{one}: has a test, and a reason why it has none" for one in excused if one in tested]
    wrong += [f"{one}: has a reason, but is no case" for one in excused if one not in ids]
    wrong += [f"{one}: has two rows" for one in set(excused) if excused.count(one) > 1]
    return wrong + [f"{one}: has a test, but is no case" for one in sorted(tested - set(ids))]


def test_every_case_has_a_test_or_a_reason() -> None:
    assert len(IDS) == len(set(IDS)) == 177
    assert findings(IDS, ids_of_tests(TESTS.rglob("test_*.py")), rows(README.read_text(), "Not covered yet")) == []


def test_what_is_covered_in_part_has_a_test() -> None:
    partly = rows(README.read_text(), "Covered in part")
    assert partly and set(partly) <= ids_of_tests(TESTS.rglob("test_*.py"))


@pytest.mark.parametrize(
    ("tested", "excused", "wrong"),
    [
        ({"T01", "D01"}, [], []),
        ({"T01"}, ["D01"], []),
        ({"T01"}, [], ["D01: no test and no reason"]),
        ({"T01", "D01"}, ["D01"], ["D01: has a test, and a reason why it has none"]),
        ({"T01", "D01"}, ["X99"], ["X99: has a reason, but is no case"]),
        ({"T01"}, ["D01", "D01"], ["D01: has two rows"]),
        ({"T01", "D01", "X98"}, [], ["X98: has a test, but is no case"]),
    ],
)
def test_the_table_can_be_wrong(tested: set[str], excused: list[str], wrong: list[str]) -> None:
    assert findings(["T01", "D01"], tested, excused) == wrong


def test_names_are_read_as_they_are_meant(tmp_path: Path) -> None:
    path = tmp_path / "test_a.py"
    path.write_text(
        "def test_X01_X36_a(): ...\ndef test_T1_b(): ...\ndef helper_D01_c(): ...\ndef test_of_D03_d(): ...\n"
    )
    assert ids_of_tests([path]) == {"X01", "X36"}
    assert rows("a\n## B\n| T01 | why | who |\n| T03 | why |\n## C\n| D01 | x | y |\n", "B") == ["T01"]
