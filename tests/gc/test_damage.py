"""Damage to each stored object in turn: it is named, all else is still found intact, and checkouts agree."""

import random

import pytest

from cairn.gc.roots import deleted_checkpoints, live_checkpoints
from cairn.registry.deletion import restore, tombstone
from cairn.registry.fold import TAG
from cairn.registry.modeldeletion import delete_model, restore_model
from cairn.registry.models import delete_ref, find_model
from cairn.registry.names import entry_name
from tests.gc.gallery import Gallery, flipped, named

# Nothing opens without these, so no checkpoint can be asked for.
OPENING = ("format", "keys/store/", "log/00000000/000000000000")
# A checkout needs every byte of these.
FATAL = (".body", ".root")


def check(gallery: Gallery, name: str, data: bytes | None, cold: bool = False, checkouts: bool = True) -> None:
    with gallery.replaced(name, data):
        report = gallery.verify(cold=cold)
        assert not report.ok
        assert named(report, name), f"{name} is not among {[problem.object for problem in report.errors]}"
        assert all(problem.what for problem in report.errors)
        if checkouts and not name.startswith(OPENING):
            gallery.check_checkouts(report, must_fail=name.endswith(FATAL) or name.startswith("keys/model"))


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
@pytest.mark.parametrize("turn", [1, 2])
def test_a_flipped_byte_is_found_wherever_it_is(gallery: Gallery, draw: random.Random, turn: int, cold: bool) -> None:
    for name in gallery.objects():
        data = gallery.site.backend.read(name)
        print(name)
        check(gallery, name, flipped(data, draw), cold)
    assert gallery.verify().ok


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_lost_object_is_named(gallery: Gallery, cold: bool) -> None:
    for name in gallery.objects():
        if not name.startswith("sessions/"):  # those come and go
            print(name)
            check(gallery, name, None, cold)
    assert gallery.verify().ok


@pytest.mark.parametrize("keep", [0, 0.5, 1], ids=["empty", "half", "last byte"])
def test_a_truncated_object_is_named(gallery: Gallery, keep: float) -> None:
    for name in gallery.objects():
        data = gallery.site.backend.read(name)
        print(name)
        check(gallery, name, data[: min(int(keep * len(data)), len(data) - 1)], checkouts=keep == 0.5)
    assert gallery.verify().ok


def test_bytes_after_an_object_are_found(gallery: Gallery) -> None:
    for name in gallery.objects():
        print(name)
        check(gallery, name, gallery.site.backend.read(name) + b"\0", checkouts=name.endswith(".pack"))


def test_an_object_in_the_place_of_another_is_found(gallery: Gallery) -> None:
    for ending in (".pack", ".index", ".body", ".root", ".reach"):
        names = gallery.objects(ending)
        for name, other in zip(names, names[1:] + names[:1], strict=True):
            print(name)
            check(gallery, name, gallery.site.backend.read(other), checkouts=ending == ".pack")


def test_every_byte_of_a_pack_counts(gallery: Gallery, draw: random.Random) -> None:
    name = min(gallery.objects(".pack"), key=gallery.site.backend.size)
    data = gallery.site.backend.read(name)
    ends = [*range(80), *range(len(data) - 120, len(data))]
    for at in draw.sample(ends, 40):
        with gallery.replaced(name, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]):
            assert named(gallery.verify(), name), f"byte {at}"


def test_damage_to_what_only_deleted_checkpoints_need_is_named(gallery: Gallery) -> None:
    registry = gallery.site.registry()
    first, other = find_model(registry, "first"), find_model(registry, "other")
    gone = next(root.checkpoint for root in live_checkpoints(registry.state) if root.model == first)
    delete_ref(registry, first, "v1", TAG)
    tombstone(registry, first, [gone], "deleted", 0)
    delete_model(registry, other, "deleted", 0)
    roots = deleted_checkpoints(registry.state)
    assert gallery.verify().ok and {root.model for root in roots} == {first, other}
    for root in roots:
        folder = root.state.body.object_name("body").rpartition("/")[0]
        own = [name for name in gallery.objects() if name.startswith(folder) and not name.endswith(".index")]
        assert {name.rpartition(".")[2] for name in own} >= {"body", "root", "reach", "pack"}
        for name in (*own, entry_name(root.state.n)):
            whole = gallery.site.backend.read(name)
            middle = len(whole) // 2  # of a pack, some chunk
            for data in (whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :], None):
                print(name, data is None)
                with gallery.replaced(name, data):
                    found = {(one.model, one.checkpoint) for one in named(gallery.verify(), name)}
                assert (root.model.hex(), root.checkpoint.hex()) in found
    restore_model(registry, other)
    restore(registry, first, [gone])
    gallery.check_checkouts(gallery.verify(), must_fail=False)
