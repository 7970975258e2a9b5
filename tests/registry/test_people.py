"""Who stands behind an actor: known to owners, committed to in the log, and erasable."""

from itertools import count
from pathlib import Path

import pytest
from blake3 import blake3

from cairn.core.canonical import encode
from cairn.core.errors import (
    CairnError,
    ConflictError,
    GoneError,
    IntegrityError,
    NotAllowed,
    NotFoundError,
    UsageError,
)
from cairn.registry.people import forget_person, known_people, name_person, person
from cairn.registry.registry import Registry
from cairn.registry.rights import Role
from cairn.registry.rotation import rotate_root
from cairn.store.backends.faults import Crash, FaultyBackend, Stopped
from tests.support.members import actor_of, join
from tests.support.stores import Site, copied, new_site

WHO = "Ada Example, ada@example.org"


@pytest.fixture
def store(tmp_path: Path) -> Site:
    return new_site(tmp_path / "home")


def test_owners_know_who_it_is_and_the_log_holds_a_salted_commitment(store: Site) -> None:
    writer = join(store, "writer", Role.WRITER)
    registry = store.registry()
    name_person(registry, actor_of(writer), WHO)
    told = person(store.registry(), actor_of(writer))
    assert told.text == WHO and known_people(registry) == {actor_of(writer): WHO}
    held = registry.state.people[actor_of(writer)]
    assert held.commitment == blake3(encode(told)).digest()
    assert held.commitment not in (blake3(WHO.encode()).digest(), blake3(encode(WHO)).digest())
    assert not any(WHO.encode() in store.backend.read(name) for name in store.names())
    rotate_root(registry)
    assert person(store.registry(), actor_of(writer)).text == WHO


@pytest.mark.parametrize("role", [Role.WRITER, Role.AUDITOR, Role.COLLECTOR])
def test_nobody_else_does(store: Site, role: Role) -> None:
    member = join(store, "member", role)
    name_person(store.registry(), actor_of(member), WHO)
    registry, names = member.registry(), store.names()
    assert known_people(registry) == {}
    for act in (
        lambda: person(registry, actor_of(member)),
        lambda: name_person(registry, actor_of(member), "somebody else"),
        lambda: forget_person(registry, actor_of(member)),
    ):
        with pytest.raises(NotAllowed):
            act()
    assert [name for name in store.names() if name not in names] == []


def test_what_is_erased_is_gone_and_its_commitment_says_nothing(store: Site) -> None:
    actor, registry = actor_of(store), store.registry()
    name_person(registry, actor, WHO)
    before = copied(store.backend)
    keys = {name for name in store.names() if "/person/" in name}
    forget_person(registry, actor)
    assert not [name for name in store.names() if name.startswith("people/") or "/person/" in name]
    with pytest.raises(NotFoundError):
        person(registry, actor)
    with pytest.raises(NotFoundError):
        forget_person(registry, actor)
    for name in keys:
        before.delete(name)
    old = Site(before, store.home.__class__(*(store.home.data, store.home.state / "x", store.home.cache / "x")))
    old.home.state.mkdir(parents=True)
    with pytest.raises(CairnError) as caught:
        person(old.registry(), actor)
    assert isinstance(caught.value, GoneError)


def test_a_newer_record_takes_the_place_of_the_older(store: Site) -> None:
    registry, actor = store.registry(), actor_of(store)
    for text in ("one", "two"):
        name_person(registry, actor, text)
    assert person(registry, actor).text == "two"
    assert len([name for name in store.names() if name.startswith("people/")]) == 1


def test_a_record_in_the_place_of_another_is_refused(store: Site) -> None:
    registry, actor, other = store.registry(), actor_of(store), actor_of(join(store, "other", Role.READER))
    name_person(registry, actor, "one")
    name_person(registry, other, "two")
    one, two = (registry.state.people[who].name.hex() for who in (actor, other))
    for folder in ("people", "keys/person"):
        swapped = store.backend.read(f"{folder}/{two}")
        store.backend.delete(f"{folder}/{one}")
        store.backend.create(f"{folder}/{one}", [swapped])
    with pytest.raises(IntegrityError, match="not the record that the log speaks for"):
        person(store.registry(), actor)


@pytest.mark.parametrize("text", ["", "x" * 5000])
def test_what_is_no_description(store: Site, text: str) -> None:
    with pytest.raises(UsageError):
        name_person(store.registry(), actor_of(store), text)


@pytest.mark.parametrize("act", ["name", "forget"])
def test_wherever_it_is_stopped_nothing_lies_around_that_no_entry_names(tmp_path: Path, act: str) -> None:
    for number in count(1):
        store = new_site(tmp_path / str(number), seed=number)
        actor = actor_of(store)
        name_person(store.registry(), actor, "before")
        backend = FaultyBackend(store.backend, [Crash(call=number)])
        try:
            registry = Registry(store.open(backend))
            name_person(registry, actor, WHO) if act == "name" else forget_person(registry, actor)
        except Stopped:
            stopped = True
        else:
            stopped = False
        people = store.registry(cold=True).state.people
        named = {one.name.hex() for one in people.values()}
        lying = {name.rpartition("/")[2] for name in store.names() if name.startswith(("people/", "keys/person/"))}
        assert lying <= named, number
        if act == "name":
            name_person(store.registry(), actor, WHO)
            assert person(store.registry(), actor).text == WHO
        elif actor in people:
            forget_person(store.registry(), actor)
            assert not [name for name in store.names() if name.startswith(("people/", "keys/person/"))]
        if not stopped:
            break
    assert number > 4


def test_two_owners_at_once_leave_one_record(store: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    actor, append = actor_of(store), Registry.append

    def raced(self: Registry, build: object) -> int:
        monkeypatch.setattr(Registry, "append", append)
        name_person(store.registry(), actor, "theirs")
        return append(self, build)  # type: ignore[arg-type]  # whatever was given

    registry = store.registry()
    monkeypatch.setattr(Registry, "append", raced)
    with pytest.raises(ConflictError, match="meanwhile"):
        name_person(registry, actor, "ours")
    assert person(store.registry(), actor).text == "theirs"
    assert len([name for name in store.names() if name.startswith("people/")]) == 1
