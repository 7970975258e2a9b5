"""The environment, read in this one place.

Folders follow the XDG base directory specification: *data* holds what must be backed up (key files),
*state* what a client remembers (identity, seen log heads), *cache* what may be deleted at any time.
"""

import os
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple


class Settings(NamedTuple):
    """What the user's surroundings say; every field can be overridden by an argument."""

    store: str | None
    key_file: Path | None
    passphrase: str | None
    data: Path
    state: Path
    cache: Path

    @staticmethod
    def from_environment() -> "Settings":
        """Read `CAIRN_STORE`, `CAIRN_KEY_FILE`, `CAIRN_PASSPHRASE` and the XDG folders."""
        key_file = os.environ.get("CAIRN_KEY_FILE")
        return Settings(
            store=os.environ.get("CAIRN_STORE") or None,
            key_file=Path(key_file) if key_file else None,
            passphrase=os.environ.get("CAIRN_PASSPHRASE") or None,
            data=_folder("XDG_DATA_HOME", ".local/share"),
            state=_folder("XDG_STATE_HOME", ".local/state"),
            cache=_folder("XDG_CACHE_HOME", ".cache"),
        )


def _folder(variable: str, default: str) -> Path:
    base = os.environ.get(variable)
    return (Path(base) if base else Path.home() / default) / "cairn"


def variables(patterns: Iterable[str], among: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables whose names match one of `patterns`, in which `*` stands for anything; sorted by name.

    Args:
        among: all variables; by default those of this process.
    """
    given, wanted = os.environ if among is None else among, tuple(patterns)
    return {name: given[name] for name in sorted(given) if any(fnmatchcase(name, form) for form in wanted)}
