"""Destroying the keys of deleted models, for the commands that do it."""

from typing import TYPE_CHECKING

from cairn.cli.opening import new_passphrase
from cairn.cli.output import count, note, safe

if TYPE_CHECKING:
    from cairn.gc.shred import Shredded
    from cairn.registry.registry import Registry


def shred(registry: "Registry") -> "Shredded | None":
    """Destroy the keys of all deleted models that are due.

    Where a passphrase opens the store, the new root key gets the new one if one is set, else the same.
    """
    from cairn.core.settings import Settings
    from cairn.gc.shred import shred_due
    from cairn.registry.rotation import needs_passphrase

    def passphrase() -> str | None:
        if not needs_passphrase(registry):
            return None
        settings = Settings.from_environment()
        return settings.new_passphrase or settings.passphrase or new_passphrase("CAIRN_NEW_PASSPHRASE")

    return shred_due(registry, passphrase)


def say_what_was_shredded(done: "Shredded | None") -> None:
    """Tell what nothing can undo, and where the new root key lies."""
    if done is None:
        return
    note(f"destroyed the keys of {count(len(done.models), 'model')}, which nothing restores; the root key is a new one")
    if done.key_file is not None:
        note(f"note: copy {safe(str(done.key_file))} to a safe place, and to every owner who is no member")
        note("note: old key files and recovery files open nothing")
