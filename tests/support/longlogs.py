"""Logs of many entries, which a registry would take minutes to append."""

from collections.abc import Iterable, Iterator

from cairn.core.canonical import encode
from cairn.registry.entries import FORMAT, TYPES, Entry, Payload, RunOpen, seal_entry
from cairn.registry.merkle import append_leaf, leaf_hash, root_of
from cairn.registry.names import entry_name
from cairn.registry.opened import OpenStore
from cairn.registry.state import State
from cairn.store.backends.faults import Fail, FaultyBackend
from tests.support.stores import Site


def append_all(opened: OpenStore, state: State, payloads: Iterable[Payload]) -> None:
    """Append entries behind `state`, which is that of the log."""
    n, frontier = state.length, state.frontier
    for payload in payloads:
        stored = next_entry(opened, n, frontier, payload)
        opened.backend.create(entry_name(n), [stored])
        n, frontier = n + 1, append_leaf(frontier, n, leaf_hash(stored))


def next_entry(opened: OpenStore, n: int, frontier: tuple[bytes, ...], payload: Payload) -> bytes:
    """Stored bytes of the user's entry `n` behind entries of that frontier."""
    entry = Entry(
        FORMAT, opened.tenant, opened.store, n, root_of(frontier), TYPES[type(payload)], opened.identity.actor,
        opened.entropy.token(16), opened.clock.wall_ns(), encode(payload),
    )  # fmt: skip
    return seal_entry(entry, opened.identity, opened.secrets.k_log, opened.entropy)


def grow_to(site: Site, length: int) -> None:
    """Append entries that each change the state of the store's first model, until the log has `length`."""
    registry = site.registry()
    state, opened = registry.state.copy(), registry.opened
    registry.close()
    append_all(opened, state, run_opens(next(iter(state.models)), state.length, length))


def run_opens(model: bytes, first: int, end: int) -> Iterator[RunOpen]:
    """A run of its own for each position."""
    return (RunOpen(model, n.to_bytes(16, "big"), 1) for n in range(first, end))


def forget(site: Site) -> None:
    """Let this user have seen no head of the store."""
    (site.home.state / "heads" / site.open().store.hex()).unlink(missing_ok=True)


def put(site: Site, name: str, data: bytes) -> None:
    """Put an object in the place of another, or of none."""
    site.backend.delete(name)
    site.backend.create(name, [data])


def by_entries(site: Site) -> State:
    """The state by single entries, without any shortcut."""
    backend = FaultyBackend(site.backend, [Fail(op="list", name=folder) for folder in ("bundles", "snapshots")])
    state = site.registry(backend, cold=True).state
    assert not [call for call in backend.calls if call.name.startswith(("bundles/", "snapshots/"))]
    return state
