"""Small rules about the text of the project, each with a proof that it can fail."""

import re
import subprocess
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Beyond this a file has swallowed a second one.
MODULE_LINES_MAX = 400
# Spelt so that this file does not match itself.
UNFINISHED = re.compile(rb"\b(?:T[O]DO|F[I]XME|X[X]X)\b")
# A path of one machine: absolute, hence with nothing that could be part of a path before the slash.
ONE_MACHINE = re.compile(rb"(?<![\w./~})>*-])/(?:work|root|home/\w+|Users/\w+)(?:/|\b)")
IGNORED_TYPE = re.compile(r"#\s*type:\s*ignore")
# The error's code, then why: `# type: ignore[arg-type]  # the stub lacks the argument`
REASONED_IGNORE = re.compile(r"#\s*type:\s*ignore\[[\w, -]+\]\s*#\s*\S")


def project_files(root: Path) -> list[Path]:
    """Files that are tracked or about to be; without git, all that do not stand in a hidden folder."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=False)
    if listed.returncode == 0:
        paths: Iterable[Path] = (root / name for name in listed.stdout.decode().split("\0") if name)
    else:
        hidden = (path for path in root.rglob("*") if not path.relative_to(root).parts[0].startswith("."))
        paths = (path for path in hidden if "__pycache__" not in path.parts)
    return sorted(path for path in paths if path.is_file() and not path.is_symlink())


def tidy_findings(root: Path, files: Iterable[Path]) -> list[str]:
    """Breaches in `files`, named by their place below `root`."""
    found = []
    for path in files:
        place = path.relative_to(root).as_posix()
        lines = path.read_bytes().splitlines()
        for number, line in enumerate(lines, 1):
            if UNFINISHED.search(line):
                found.append(f"{place}:{number}: [unfinished] finish it, or file an issue")
            if ONE_MACHINE.search(line):
                found.append(f"{place}:{number}: [path] names a folder of one machine")
        if path.suffix == ".py":
            if len(lines) > MODULE_LINES_MAX:
                found.append(f"{place}: [long] {len(lines)} lines, more than {MODULE_LINES_MAX}: split it")
            found += [f"{place}:{number}: [ignore] says neither code nor reason" for number in bare_ignores(path)]
    return found


def bare_ignores(path: Path) -> Iterator[int]:
    """Lines of comments that silence the type checker without saying why."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            comment = token.string if token.type == tokenize.COMMENT else ""
            if IGNORED_TYPE.search(comment) and not REASONED_IGNORE.search(comment):
                yield token.start[0]


def test_tidy() -> None:
    files = project_files(ROOT)
    assert Path(__file__) in files, "the test looks in the wrong place"
    assert tidy_findings(ROOT, files) == []


# Put together, so that no path of a machine stands in this file.
WORK = "/".join(("", "work", "x"))
# The bar is taken out before use: it keeps this file from breaking its own rules.
BREACHES = [
    ("unfinished", "store/pack.py", "x = 1  # TO|DO: more", "x = 1  # to do so"),
    ("unfinished", "docs/design.md", "FIX|ME", "fixme later"),
    ("path", "docs/design.md", f"see {WORK}", f"see docs{WORK}"),
    ("path", "Makefile", "cd '/ro|ot'", "component/root, {name}/root, /rooted"),
    ("path", "tests/test_a.py", "P = '/ho|me/someone/x'", "P = '~/x'"),
    ("ignore", "store/pack.py", "x = 1  # type: ignore", "x = 1  # type: ignore[misc]  # stub is wrong"),
    ("ignore", "store/pack.py", "x = 1  # type: ignore[misc]", "x = '# type: ignore'"),
    ("long", "store/pack.py", "x = 1\n" * (MODULE_LINES_MAX + 1), "x = 1\n" * MODULE_LINES_MAX),
]


@pytest.mark.parametrize(("rule", "place", "bad", "good"), BREACHES, ids=[f"{b[0]}-{b[1]}" for b in BREACHES])
def test_tidy_rule_catches_its_breach(tmp_path: Path, rule: str, place: str, bad: str, good: str) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(good)
    assert tidy_findings(tmp_path, project_files(tmp_path)) == []
    path.write_text(bad.replace("|", ""))
    (finding,) = tidy_findings(tmp_path, project_files(tmp_path))
    assert finding.startswith(place) and f"[{rule}]" in finding
