"""Neighbours come with one request; what is damaged or lost among them is sought elsewhere, and the rest is not."""

import random

import pytest

from cairn.core.errors import CairnError
from cairn.core.ids import Digest
from cairn.store.backends.memory import MemoryBackend
from cairn.store.chunkstore import ChunkStore
from cairn.store.crypto.tenant import ContentType
from cairn.store.together import read_together
from tests.support.chunks import OpenSession, begin, chunk_store, index_of
from tests.support.counting import CountingBackend

DRAW = random.Random(8)
CONTENTS = [DRAW.randbytes(length) for length in (300, 5000, 70_000, 200, 400)]


def stored(store: ChunkStore, session: int = 1) -> list[Digest]:
    """Digests of the contents as pages, which lie in one pack."""
    save = store.save(OpenSession(begin(store, session).session.ensure_open()))
    with save.writer() as writer:
        digests = [writer.put(ContentType.PAGE, data) for data in CONTENTS]
    index_of(store).add(save)
    return digests


def test_neighbours_cost_one_request() -> None:
    backend = CountingBackend(MemoryBackend())
    store = chunk_store(backend)
    digests = stored(store)
    backend.forget()
    wanted = [digests[3], digests[1], digests[2]]
    assert list(read_together(store, ContentType.PAGE, wanted).items()) == [
        (digests[3], CONTENTS[3]), (digests[1], CONTENTS[1]), (digests[2], CONTENTS[2])
    ]  # fmt: skip
    assert backend.requests == 1
    assert read_together(store, ContentType.PAGE, [digests[0], digests[2]]) == {
        digests[0]: CONTENTS[0], digests[2]: CONTENTS[2]
    }  # fmt: skip
    assert backend.requests == 3
    assert read_together(store, ContentType.PAGE, []) == {}


@pytest.mark.parametrize("harm", ["lost", "short", "changed"])
def test_damage_is_made_up_for_by_another_place_or_is_an_error(harm: str) -> None:
    store = chunk_store(MemoryBackend())
    digests = stored(store)
    backend, name = store.access.backend, index_of(store).packs[0].name
    data = backend.read(name)
    backend.delete(name)
    if harm != "lost":
        backend.create(name, [data[:9000] if harm == "short" else data[:9000] + b"\xff\x00" + data[9002:]])
    with pytest.raises(CairnError):
        read_together(store, ContentType.PAGE, digests)
    lone = dict(index_of(store).places)
    index_of(store).places = {}
    stored(store, session=2)
    for identifier, places in index_of(store).places.items():
        places[:0] = lone[identifier]
    assert list(read_together(store, ContentType.PAGE, digests).values()) == CONTENTS
