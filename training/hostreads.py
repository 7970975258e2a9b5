"""How ranks of one host agree to share what they read.

Each leaves the list of what it wants in memory of its own, and tells where that is; one makes the memory that all
share. Unless every one of them can map everything and comes to the same extents, each reads alone.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from mmap import mmap

import msgspec
from blake3 import blake3

from cairn.core.limits import SHARED_READ_BYTES
from cairn.core.process import this_machine
from cairn.loader.memfd import Address, HostMemory, map_memory
from cairn.loader.ring import Layout, Ring
from cairn.loader.sharing import READERS_MAX, Extent, shared_extents
from cairn.training.ranks import Ranks


def host_of_process() -> bytes:
    """Equal for processes that can map each other's memory: one boot, one space of process numbers, one user.

    Empty where that cannot be told.
    """
    machine = this_machine()
    return blake3(f"{machine}/{os.geteuid()}".encode()).digest(16) if machine else b""


def first_of_hosts(hosts: Sequence[bytes]) -> tuple[int, ...]:
    """For each rank the first rank of its host; nothing if no two ranks are on one."""
    first: dict[bytes, int] = {}
    found = tuple(first.setdefault(host, rank) if host else rank for rank, host in enumerate(hosts))
    return found if any(one != rank for rank, one in enumerate(found)) else ()


def members_of(firsts: Sequence[int], rank: int) -> list[int]:
    """The ranks that share reads with a rank, itself included, in order."""
    if not firsts:
        return [rank]
    on_host = [other for other, first in enumerate(firsts) if first == firsts[rank]]
    begin = on_host.index(rank) // READERS_MAX * READERS_MAX
    return on_host[begin : begin + READERS_MAX]


def agree(ranks: Ranks, task: str, members: Sequence[int], wants: bytes, seconds: float) -> Ring | None:
    """Agree with the other members, all of whom call this; None if each is to read alone.

    Raises:
        SaveFailed, RankLost: as of `Ranks.wait`.
    """
    with ExitStack() as held:
        ranks.tell(task, "wants", _leave(wants, held))
        told = ranks.wait(task, "wants", members, seconds)
        extents = _extents([told[member] for member in members])
        leads = ranks.rank == members[0]
        layout = Layout(extents, len(members), SHARED_READ_BYTES * len(members))
        if leads:
            ranks.tell(task, "ring", _leave(layout.nbytes, held) if extents else b"")
        ring = ranks.wait(task, "ring", members[:1], seconds)[members[0]]
        memory = _map(ring) if extents else None
        same = blake3(msgspec.msgpack.encode(extents)).digest() if memory is not None else b""
        ranks.tell(task, "joined", same)
        joined = ranks.wait(task, "joined", members, seconds)
        if memory is None or set(joined.values()) != {same}:
            return None
    return Ring(extents, layout, memory, members.index(ranks.rank))


def _leave(content: bytes | int, held: ExitStack) -> bytes:
    """Leave bytes, or room for so many, where other processes find them; tells where, nothing if there is no room."""
    data, size = (b"", content) if isinstance(content, int) else (content, len(content))
    try:
        memory = HostMemory(size)
    except OSError:
        return b""
    held.callback(memory.close)
    memory.write(data)
    return msgspec.msgpack.encode(memory.address)


def _map(told: bytes) -> mmap | None:
    """What a rank left; None if there is no such thing, or it is out of reach."""
    if not told:
        return None
    try:
        return map_memory(msgspec.msgpack.decode(told, type=Address))
    except OSError:
        return None


def _extents(told: Sequence[bytes]) -> list[Extent]:
    """What the members share; nothing if the wants of one are out of reach."""
    wants: list[bytes] = []
    for one in told:
        memory = _map(one)
        if memory is None:
            return []
        with memory:
            wants.append(memory[:])
    return shared_extents(wants)
