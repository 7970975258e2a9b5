"""Where ranks leave each other short messages: attempt ids, signs of life, failures, outcomes.

Not a collective: nobody waits inside a rendezvous, so a background thread may use it while training uses the process
groups as it likes.
"""

import threading
from typing import Any, Protocol

from cairn.core.errors import RankLost


class Rendezvous(Protocol):
    """A map that all ranks of a job share. Keys are set once or overwritten; values are short."""

    @property
    def rank(self) -> int:
        """This rank."""
        ...

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        ...

    def put(self, key: str, value: bytes) -> None:
        """Set a key.

        Raises:
            RankLost: the map cannot be reached any more.
        """
        ...

    def peek(self, key: str) -> bytes | None:
        """Value of a key, None if it is not set; never waits for one.

        Raises:
            RankLost: the map cannot be reached any more.
        """
        ...

    def drop(self, key: str) -> None:
        """Forget a key."""
        ...


class Alone:
    """The rendezvous of a job of one process."""

    rank, ranks = 0, 1

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def put(self, key: str, value: bytes) -> None:
        """Set a key."""
        self._values[key] = value

    def peek(self, key: str) -> bytes | None:
        """Value of a key."""
        return self._values.get(key)

    def drop(self, key: str) -> None:
        """Forget a key."""
        self._values.pop(key, None)


class JobStore:
    """The store of a torch.distributed job (`TCPStore`, `FileStore`, ...), on a connection of its own.

    Args:
        store: it is cloned, since a thread that waits on a shared connection blocks whoever else uses it.
        prefix: what this job's keys begin with; the same on all ranks.
    """

    def __init__(self, store: Any, rank: int, ranks: int, prefix: str) -> None:
        self.rank, self.ranks = rank, ranks
        self._store = store.clone() if hasattr(store, "clone") else store
        self._prefix = prefix
        self._lock = threading.Lock()

    @staticmethod
    def of_job(name: str, group: Any = None) -> "Rendezvous":
        """A rendezvous of a process group's ranks, of all ranks of the job if none is given; `Alone` without a job.

        Ranks count within the group. The n-th that a rank makes of one name meets the n-th of every other rank.
        """
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size(group) == 1:
            return Alone()
        store = dist.distributed_c10d._get_default_store()
        members = "" if group is None else "," + ",".join(map(str, dist.get_process_group_ranks(group)))
        rank = dist.get_rank(group)
        turn = store.add(f"cairn/{name}{members}/turn/{rank}", 1)
        return JobStore(store, rank, dist.get_world_size(group), f"cairn/{name}{members}/{turn}")

    def put(self, key: str, value: bytes) -> None:
        """Set a key."""
        with self._lock, _Reached():
            self._store.set(f"{self._prefix}/{key}", value)

    def peek(self, key: str) -> bytes | None:
        """Value of a key."""
        name = f"{self._prefix}/{key}"
        with self._lock, _Reached():
            return bytes(self._store.get(name)) if self._store.check([name]) else None

    def drop(self, key: str) -> None:
        """Forget a key."""
        with self._lock, _Reached():
            self._store.delete_key(f"{self._prefix}/{key}")


class _Reached:
    """Turns what torch raises for a lost connection into our error."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError | OSError):
            raise RankLost(
                f"the job's store is gone, and with it the process that serves it (rank 0 or the launcher): {error}",
                hint="restart the job; 'cairn log' tells what was committed",
            ) from None
