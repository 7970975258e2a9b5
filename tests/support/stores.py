"""Stores with what a user has around them: a home, a clock, randomness."""

from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from cairn.core.clock import Clock
from cairn.core.ids import CheckpointId, ModelId
from cairn.registry.localfiles import KeyHome
from cairn.registry.opened import KeySource, OpenStore, create_store, open_store
from cairn.registry.registry import Registry
from cairn.registry.selectors import resolve
from cairn.store import environments
from cairn.store.backends.contract import Backend
from cairn.store.backends.memory import MemoryBackend
from cairn.workspace.checkout import CheckoutResult, checkout
from cairn.workspace.commit import CommitOptions, CommitResult, commit
from tests.support.doubles import HeldClock, SeededEntropy


@dataclass
class Site:
    """One user at one store; `backend` is where its bytes really lie, and outlives every registry opened here."""

    backend: Backend
    home: KeyHome
    source: KeySource = field(default_factory=KeySource)
    clock: Clock = field(default_factory=HeldClock)
    entropy: SeededEntropy = field(default_factory=SeededEntropy)
    _caches: "count[int]" = field(default_factory=count)

    def open(self, through: Backend | None = None, *, cold: bool = False) -> OpenStore:
        """Open the store, as another process would: `through` a wrapper, `cold` with an empty cache."""
        home = self.home
        if cold:
            home = replace(home, cache=home.cache.with_name(f"cache-{next(self._caches)}"))
        return open_store(through or self.backend, home, self.source, self.clock, self.entropy)

    def registry(self, through: Backend | None = None, *, cold: bool = False) -> Registry:
        """A registry of its own."""
        return Registry(self.open(through, cold=cold))

    def log(self) -> list[str]:
        """Names of the log's entries, in order."""
        return [listed.name for listed in self.backend.list("log")]

    def names(self, ending: str = "") -> list[str]:
        """Names of all objects, or of those with an ending."""
        return [listed.name for listed in self.backend.list() if listed.name.endswith(ending)]


def home_in(folder: Path) -> KeyHome:
    """A user's three folders, none of which exists yet."""
    return KeyHome(folder / "data", folder / "state", folder / "cache")


def new_site(
    folder: Path,
    backend: Backend | None = None,
    *,
    seed: int = 0,
    passphrase: str | None = None,
    clock: Clock | None = None,
) -> Site:
    """A new store of a new tenant, in memory if no backend is given."""
    site = Site(
        backend or MemoryBackend(), home_in(folder), KeySource(passphrase=passphrase), clock or HeldClock(),
        SeededEntropy(seed),
    )  # fmt: skip
    create_store(site.backend, site.home, site.source, site.clock, site.entropy)
    return site


def copied(backend: Backend) -> MemoryBackend:
    """All objects of a backend, in another one."""
    copy = MemoryBackend()
    for listed in backend.list():
        copy.create(listed.name, [backend.read(listed.name)])
    return copy


def commit_tree(registry: Registry, path: Path, model: str = "m", **options: Any) -> CommitResult:
    """Commit with the options that are named."""
    return commit(registry, path, model, CommitOptions(**options))


def checkout_to(registry: Registry, selector: str, destination: Path) -> CheckoutResult:
    """Check out what a selector means."""
    return checkout(registry, *resolve(registry, selector), destination)


def tip(registry: Registry, selector: str = "m") -> tuple[ModelId, CheckpointId]:
    """Model and checkpoint of a selector."""
    return resolve(registry, selector)


def close_environments() -> None:
    """Close every LMDB environment of this process: each holds descriptors and 256 GiB of address space."""
    while environments._open:
        environments._open.popitem()[1].close()
