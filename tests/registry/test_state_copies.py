"""A fold that was handed out stays as it is, so that its reader finds in the index all that it names."""

import os
from pathlib import Path

from cairn.gc.collect import Collector, Options
from cairn.registry.entries_deletion import Drop, Tombstone
from cairn.registry.reachability import read_reachability
from cairn.store.backends.faults import FaultyBackend
from tests.support.stores import Site, commit_tree, new_site, tip


class _Asks(FaultyBackend):
    """Asks a question whenever an index piece is read."""

    question = staticmethod(lambda: None)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if name.endswith(".index"):
            self.question()
        return super().read(name, offset, length)


def test_a_reader_beside_a_refresh_that_learns_of_copies(tmp_path: Path) -> None:
    site: Site = new_site(tmp_path / "home")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "kept").write_bytes(os.urandom(3 << 10))
    for step in range(2):
        (tree / "changes").write_bytes(os.urandom(1 << 10))
        commit_tree(site.registry(), tree, step=step)
    through = _Asks(site.backend)
    reading = site.registry(through)
    model, last = tip(reading)
    ids = read_reachability(reading.opened, reading.state.models[model].checkpoints[last])
    asked = list[int]()

    def question() -> None:
        asked.extend(len(reading.index().locations(identifier)) for identifier in ids)

    through.question = question  # type: ignore[method-assign]  # this object's own
    registry = site.registry(cold=True)
    first = next(one for one in registry.state.models[model].checkpoints if one != last)
    registry.append(lambda _: Tombstone(model, (first,), 0, "test"))
    registry.append(lambda _: Drop(model, (first,)))
    assert Collector(registry, Options(unused=0.0, condemn_only=True)).run().bytes_copied
    reading.refresh()
    assert asked and all(asked)
