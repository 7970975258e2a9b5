"""What all tests share: how Hypothesis runs, and the seed that repeats a run."""

import secrets

import pytest
from hypothesis import settings

from tests.support.points import points_table

# Shared checks state their failures as plainly as tests do.
pytest.register_assert_rewrite("tests.contracts", "tests.faults")

settings.register_profile("cairn", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("cairn")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Draw the seed here, before Hypothesis and xdist read it, so that it can be printed."""
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(secrets.randbits(32))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that hold long tests: what comes last keeps one worker busy while the others idle."""
    long = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in long)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how to draw the same examples again, and which calls met a fault."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    noted = (one for report in reports if getattr(report, "when", "") == "call" for one in report.user_properties)
    for line in points_table(noted):
        terminalreporter.write_line(line)
    terminalreporter.write_line(f"same examples: --hypothesis-seed={terminalreporter.config.option.hypothesis_seed}")
