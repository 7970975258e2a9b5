"""Exports of the log: a folder that any verifier of tiled logs reads, and JSON lines for people and their tools."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cairn.core.errors import DestinationExists
from cairn.core.limits import LOG_ENTRY_BYTES_MAX
from cairn.registry.audit import KnownHead, judge
from cairn.registry.auditlines import KeysOf, Trail, facts_of
from cairn.registry.localfiles import Head
from cairn.registry.logview import LogView, StoredEntry
from cairn.registry.names import entry_name
from cairn.registry.signedhead import key_name, sign_head, verifier_key
from cairn.registry.tiles import TileFolder
from cairn.store.crypto.signing import Identity


class Exported(NamedTuple):
    """What was exported.

    Args:
        key: by which a verifier checks the head.
        owner: an owner signed it, and not a witness.
        long_bundles: ranges with an entry that the layout's own bundles have no room for.
    """

    head: Head
    key: str
    owner: bool
    long_bundles: int


class Export:
    """One export of one log."""

    def __init__(self, view: LogView, heads: list[KnownHead], keys: KeysOf | None = None) -> None:
        """Nothing happens yet.

        Args:
            heads: that the log must have had, or nothing is signed.
            keys: opens names for the JSON lines; None: ids only.
        """
        self._view, self._heads, self._keys = view, heads, keys

    def write(self, folder: Path | None, lines: Path | None, signer: Callable[[list[bytes]], Identity]) -> Exported:
        """Write what is asked for.

        Args:
            folder: for tiles, new or empty.
            lines: file for one JSON object per entry; it must not exist.
            signer: who signs the head, of a log with these owners.

        Raises:
            DestinationExists: something is there.
            IntegrityError: the log cannot be vouched for; nothing is signed.
        """
        tiles = TileFolder(folder) if folder is not None else None
        if lines is not None and lines.exists():
            raise DestinationExists(f"{lines} exists", hint="name another file for the export")

        def take(found: StoredEntry) -> None:
            if tiles is not None and found.stored is not None:
                cut_off = len(found.stored) > LOG_ENTRY_BYTES_MAX
                tiles.add(self._view.backend.read(entry_name(found.n)) if cut_off else found.stored)

        trail = Trail(self._view, None, self._keys, {one.head.length for one in self._heads}, take)
        judge(trail.whole, self._heads).require_whole()
        owners, head = trail.whole.state.owners, trail.whole.head
        identity = signer(owners)
        if tiles is not None:
            tiles.finish(trail.whole.leaves, sign_head(self._view.store, head, identity, owners))
        if lines is not None:
            with lines.open("x", encoding="utf-8") as file:
                for line in trail.lines:
                    file.write(json.dumps(facts_of(line), ensure_ascii=True) + "\n")
        key = verifier_key(key_name(self._view.store, identity.actor, owners), identity.actor)
        return Exported(head, key, identity.actor in owners, tiles.long_bundles if tiles is not None else 0)
