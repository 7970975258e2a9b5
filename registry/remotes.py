"""Remotes: other stores of the same tenant, by short names that this user gave them.

Kept in the user's data folder, a file for each local store. Addresses only: credentials come from the surroundings.
"""

import json
import os
import re
from pathlib import Path

import msgspec

from cairn.core.errors import ConflictError, IntegrityError, NotFoundError, UsageError
from cairn.core.ids import StoreId
from cairn.registry.localfiles import KeyHome, replace_file
from cairn.registry.location import plain_location
from cairn.registry.opened import OpenStore

ORIGIN = "origin"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Remote(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a remote lies, and the key file to open it with if that is not in its usual place.

    Args:
        require_signed: take nothing from it that no trusted signer vouches for.
    """

    url: str
    key_file: str = ""
    require_signed: bool = False

    @property
    def key_path(self) -> Path | None:
        """The key file, if it is not in its usual place."""
        return Path(self.key_file) if self.key_file else None

    @staticmethod
    def at(location: str, key_file: Path | None, require_signed: bool = False) -> "Remote":
        """A remote as it is noted."""
        return Remote(plain_location(location), os.path.abspath(key_file) if key_file else "", require_signed)


def noted_remotes(home: KeyHome, store: StoreId) -> dict[str, Remote]:
    """The remotes of a store by name, which need not be opened for it.

    Raises:
        IntegrityError: the file is damaged.
    """
    path = home.remotes_file(store)
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Remote])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        raise IntegrityError(f"{path} cannot be read: {error}", hint="mend it, or remove it") from None


class Remotes:
    """The remotes of one store."""

    def __init__(self, opened: OpenStore) -> None:
        """Read what was noted; raises as `noted_remotes` does."""
        self._path = opened.home.remotes_file(opened.store)
        self._known = noted_remotes(opened.home, opened.store)

    def all(self) -> dict[str, Remote]:
        """All remotes by name."""
        return dict(sorted(self._known.items()))

    def find(self, name: str) -> Remote:
        """A remote by name, or by a URL or path; an empty name means the default one.

        What is noted of a remote, as that it takes signed checkpoints alone, holds by its address too.

        Raises:
            NotFoundError: no such remote.
        """
        if name in self._known:
            return self._known[name]
        if "://" in name or os.sep in name:
            place = plain_location(name)
            return next((one for one in self._known.values() if one.url == place), Remote(name))
        if not name and (ORIGIN in self._known or len(self._known) == 1):
            return self._known.get(ORIGIN) or next(iter(self._known.values()))
        known = ", ".join(self._known) or "none"
        raise NotFoundError(
            f"no remote {name!r} (known: {known})" if name else f"no default remote (known: {known})",
            hint="'cairn remote add NAME URL' adds one, --create makes the store too; a URL or ./folder will do",
        )

    def add(self, name: str, remote: Remote) -> None:
        """Remember a remote.

        Raises:
            UsageError: not a name.
            ConflictError: the name is taken.
        """
        self.check_free(name)
        self._save({**self._known, name: remote})

    def check_free(self, name: str) -> None:
        """Raise as `add` does."""
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name[:80]!r} is no name for a remote", hint="letters, digits, '.', '_' and '-'")
        if name in self._known:
            raise ConflictError(f"there is a remote {name!r}", hint=f"'cairn remote remove {name}' forgets it")

    def remove(self, name: str) -> None:
        """Forget a remote; its store stays.

        Raises:
            NotFoundError: no such remote.
        """
        if name not in self._known:
            raise NotFoundError(f"no remote {name!r}", hint="'cairn remote list' lists them")
        self._save({key: remote for key, remote in self._known.items() if key != name})

    def _save(self, remotes: dict[str, Remote]) -> None:
        replace_file(self._path, (json.dumps(msgspec.to_builtins(remotes), indent=2) + "\n").encode())
        self._known = remotes
