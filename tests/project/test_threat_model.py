"""The threat model names every adversary, and shows each claim that holds by a test."""

import re

import pytest

from tests.project.test_docs import CODE, TEST_PATH, page, rows, section

# Of each, something holds; what else has a table, as what signatures are good for, is judged alike.
ADVERSARIES = (
    "The storage operator", "Another tenant", "A member without a right", "A former member", "A malicious writer",
    "A modified client", "An auditor", "A collector", "A holder of what was deleted", "The thief of a laptop",
    "A hostile checkpoint file",
)  # fmt: skip
HOLDS = ("yes", "**in part**", "**no**")


def headings() -> list[str]:
    return re.findall(r"^## (.+)$", page("threat-model.md"), re.M)


def claims(heading: str) -> list[list[str]]:
    """Rows of a section: claim, whether it holds, what shows it."""
    head, *found = rows(section(page("threat-model.md"), heading))
    assert head == ["claim", "holds", "shown by"]
    return found


def test_every_adversary_has_a_section_and_a_row_of_the_summary() -> None:
    assert set(ADVERSARIES) <= set(headings())
    summary = page("threat-model.md").split("\n## ")[0]
    for heading in ADVERSARIES:
        assert f"](#{heading.lower().replace(' ', '-')})" in summary


@pytest.mark.parametrize("heading", headings())
def test_what_holds_is_shown_by_a_test_and_what_does_not_is_explained(heading: str) -> None:
    found = claims(heading)
    assert any(holds == "yes" for _, holds, _ in found)
    for claim, holds, shown in found:
        assert holds in HOLDS, claim
        assert shown if holds == "**no**" else [code for code in CODE.findall(shown) if TEST_PATH.search(code)], claim
