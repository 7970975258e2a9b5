"""Who was given up wrongly: a writer, a merge, a reader. It costs a retry, and leaves nothing behind."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cairn.core.buffers import Buffer
from cairn.core.errors import ObjectNotFound, Overtaken
from cairn.core.ids import CheckpointId
from cairn.gc.collect import Collector, Options
from cairn.gc.drops import drop, due_to_drop
from cairn.gc.merging import joined, merge_pieces
from cairn.gc.observe import list_pins
from cairn.gc.silence import Silence
from cairn.registry import session as sessions
from cairn.registry.entries import MergeIndex, Supply
from cairn.registry.entries_deletion import Restore, Tombstone
from cairn.registry.pins import Pin, read_pin
from cairn.registry.reachability import read_reachability
from cairn.registry.registry import Registry
from cairn.registry.session import Session, open_sessions
from cairn.registry.state import object_key
from cairn.registry.uploads import Uploads
from cairn.store.backends.contract import Backend
from cairn.store.backends.faults import FaultyBackend
from cairn.store.crypto.objects import ObjectKind
from cairn.store.crypto.tenant import ContentType
from cairn.store.index import sorted_ids
from tests.support.stores import Site, commit_tree, new_site, tip


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A store with one checkpoint."""
    site = new_site(tmp_path / "home")
    commit(site.registry(), tmp_path / "tree")
    return site


def commit(registry: Registry, tree: Path, **options: Any) -> CheckpointId:
    """Commit a file that nothing else has."""
    tree.mkdir(exist_ok=True)
    (tree / "file").write_bytes(os.urandom(3 << 10))
    return commit_tree(registry, tree, **options).checkpoint


def give_up(site: Site, session: Session, **options: Any) -> Collector:
    collector = Collector(site.registry(), Options(dead=(session.id,), wait_seconds=0, **options))
    collector.run()
    return collector


def test_a_pack_on_its_way_while_its_session_advances(site: Site) -> None:
    """It is condemned by an epoch that the session claims before it knows of the pack: no rule voids its commit."""
    session = Session(site.registry())
    save = session.save()

    def stored(*_: object) -> None:
        give_up(site, session, condemn_only=True)
        session._beat()

    save.uploaded = stored
    with save.writer() as writer:
        writer.put(ContentType.CHUNK, os.urandom(3 << 10))
    assert session.epoch == 1
    with pytest.raises(Overtaken):
        session.settle()
    session.end()


def test_a_session_whose_object_was_removed_does_not_go_on_unseen(site: Site, tmp_path: Path) -> None:
    session = Session(site.registry())
    session.ensure_open()
    give_up(site, session)
    assert not open_sessions(site.open())
    with pytest.raises(Overtaken):
        session.settle()
    session.end()
    with pytest.raises(ObjectNotFound):
        Session(site.registry(), session.id)
    assert not list(site.backend.list("sessions"))


@pytest.mark.parametrize("stem", ["sessions", "pins"])
def test_what_lies_beside_no_session_and_no_pin_goes(site: Site, stem: str) -> None:
    alive = Session(site.registry())
    alive.ensure_open()
    strays = [f"{stem}/{'ab' * 16}.beat-7", f"{stem}/{'ab' * 16}.record-3"]
    foreign = [f"{stem}/readme", f"{alive.name}.beat-1"]
    for name in (*strays, *foreign):
        site.backend.create(name, [b""])
    Collector(site.registry()).run()
    assert not set(strays) & set(site.names())
    assert {*foreign, f"{alive.name}.open"} <= set(site.names())
    alive.end()


class _AfterPiece(FaultyBackend):
    """Lets somebody act when an index piece has just been stored."""

    def __init__(self, inner: Backend, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self._act = act

    def create(self, name: str, parts: Sequence[Buffer]) -> None:
        super().create(name, parts)
        if name.endswith(".index"):
            self._act()


def test_a_merged_piece_does_not_come_into_force_once_it_may_be_deleted(site: Site, tmp_path: Path) -> None:
    commit(site.registry(), tmp_path / "tree")

    def collect() -> None:
        (one,) = open_sessions(site.open())
        Collector(site.registry(), Options(dead=(one,), wait_seconds=0)).run()

    merge_pieces(site.registry(_AfterPiece(site.backend, collect)), least=2)
    state = site.registry().state
    assert state.epoch == 1 and len(state.pieces) == 2
    assert all(piece.object.object_name("index") in site.names("index") for piece in state.pieces)


def test_a_merge_does_not_stop_a_condemnation_of_its_piece(site: Site) -> None:
    """A collector that planned to condemn a piece which came into force since leaves it out."""
    registry = site.registry()
    session, state = Session(registry), registry.state
    epoch, _ = session.settle()
    plain = joined(registry.opened, state, state.pieces, 0, state.pack_count)
    k_index = registry.opened.secrets.k_index
    piece = Uploads(registry.opened, session).seal(k_index, ObjectKind.INDEX_PIECE, plain, "index")
    collector = Collector(site.registry(), Options(dead=(session.id,)))
    plan, marked = collector._observe_and_plan()
    assert plan.objects == [object_key(piece, "index")]
    registry.append(lambda _: MergeIndex((session.id,), epoch, piece, 0, state.pack_count))
    assert collector._condemn(plan, marked)
    assert not site.registry().state.condemned_objects
    session.end()


def test_a_pin_names_what_is_read_after_it(site: Site) -> None:
    """A supply that comes before the pin changes what the checkpoint needs."""
    reading, writing = site.registry(), site.registry()
    model, checkpoint = tip(writing)
    held = writing.state.models[model].checkpoints[checkpoint]
    with Session(writing) as session:
        session.ensure_open()
        epoch, position = session.settle()
        ids = sorted_ids(read_reachability(writing.opened, held))
        k_index = writing.opened.secrets.k_index
        reach = Uploads(writing.opened, session).seal(k_index, ObjectKind.REACHABILITY, ids, "reach")
        supply = Supply(
            model=model, checkpoint=checkpoint, sessions=(session.id,), epoch=epoch, hit_position=position, relied=(),
            packs=b"", pieces=(), reachability=reach,
        )  # fmt: skip
        writing.append(lambda _: supply)
    pin = Pin(reading, model, checkpoint)
    (name,) = site.names(".pin")
    assert read_pin(site.open(), name).reachability == reach
    pin.release()
    assert not site.names(".pin")


def test_silence_adds_up_over_collections_that_find_nothing_to_do(site: Site) -> None:
    """Sessions and pins of other machines: none of these commands lasts long enough to see one die."""
    registry = site.registry()
    session = Session(registry)
    session.ensure_open()
    session.abandon()
    pin = Pin(registry, *tip(registry))
    pin._heart.cease()
    Collector(site.registry()).run()
    site.clock.sleep(registry.state.silence_seconds / 2)
    Collector(site.registry()).plan()
    site.clock.sleep(registry.state.silence_seconds / 2)
    done = Collector(site.registry()).run()
    assert done.sessions_ended == 1
    assert not list(site.backend.list("sessions")) and not list(site.backend.list("pins"))


def test_what_an_earlier_collection_condemned_leaves_nothing(site: Site, tmp_path: Path) -> None:
    """Its packs go in the last round of the next one, which then still has index pieces to remove."""
    registry = site.registry()
    model, first = tip(registry)
    commit(registry, tmp_path / "tree")
    registry.append(lambda _: Tombstone(model, (first,), 0, "test"))
    Collector(registry, Options(condemn_only=True, unused=0.0)).run()
    Collector(registry, Options(unused=0.0)).run()
    again = Collector(site.registry(), Options(unused=0.0)).run()
    assert (again.rounds, again.objects_deleted) == (0, 0)


def test_what_is_gone_is_not_watched_any_more(site: Site, tmp_path: Path) -> None:
    registry, notes = site.registry(), tmp_path / "notes"
    silence = Silence(notes, site.clock, 900.0, 30.0)
    pin = Pin(registry, *tip(registry))
    assert len(list_pins(site.open(), silence)) == 1
    pin.release()
    assert not list_pins(site.open(), silence) and not silence._seen
    assert sessions.FOLDER not in (notes.read_text() if notes.exists() else "")


def test_a_checkpoint_deleted_anew_has_its_time_again(site: Site, tmp_path: Path) -> None:
    """A plan from before would drop it at once."""
    registry = site.registry()
    model, first = tip(registry)
    commit(registry, tmp_path / "tree")
    now = site.clock.wall_ns()
    registry.append(lambda _: Tombstone(model, (first,), now, "test"))
    planned = due_to_drop(registry)
    assert planned == [(model, first)]
    registry.append(lambda _: Restore(model, (first,)))
    registry.append(lambda _: Tombstone(model, (first,), now + 10**9, "test"))
    assert drop(registry, planned) == []
    site.clock.sleep(1.0)
    assert drop(registry, planned) == planned
