"""Copies behind a training run: each commit goes to other stores, too.

Of commits that come faster than a copy is made, the newest is copied; only what the other store lacks travels.
"""

from concurrent.futures import Future, InvalidStateError
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial

from cairn.core.errors import SaveFailed, Superseded
from cairn.core.ids import CheckpointId
from cairn.registry.opened import OpenStore
from cairn.registry.registry import Registry
from cairn.registry.remotes import Remote, Remotes
from cairn.registry.stores import open_remote
from cairn.registry.sync import SendOptions, send
from cairn.training.behind import Behind
from cairn.training.handle import Copy, is_local


@dataclass(slots=True, eq=False)
class _Job:
    checkpoint: CheckpointId
    done: "Future[CheckpointId]"


@dataclass(slots=True, eq=False)
class _Place:
    """One other store, and the copies that are not there yet."""

    remote: Remote
    behind: Behind[_Job]
    open: "list[Future[CheckpointId]]" = field(default_factory=list)


class Copies:
    """The other stores of one checkpointer.

    Args:
        names: of remotes, or addresses.

    Raises:
        NotFoundError: a name is no remote's.
    """

    def __init__(self, opened: OpenStore, model: str, branch: str, names: tuple[str, ...]) -> None:
        self._opened, self._model, self._branch = opened, model, branch
        # Nothing is read where nothing is copied.
        self._places = {name: self._place(name, Remotes(opened).find(name)) for name in names}

    def _place(self, name: str, remote: Remote) -> _Place:
        what = f"copy of {self._model}@{self._branch} to {name}"
        return _Place(remote, Behind(what, partial(self._copy, remote), self._drop))

    def of_save(self) -> dict[str, Copy]:
        """What a save's handle tells of its copies, by name."""
        return {name: Copy("local" if is_local(one.remote.url) else "object") for name, one in self._places.items()}

    def begin(self, checkpoint: CheckpointId, copies: dict[str, Copy]) -> None:
        """Copy a commit to all of them; returns at once."""
        for name, copy in copies.items():
            place = self._places[name]
            place.open = [one for one in place.open if not one.done()] + [copy.done]
            place.behind.begin(_Job(checkpoint, copy.done))

    def told(self) -> list[str]:
        """What went wrong since the last call."""
        return [text for place in self._places.values() for text in place.behind.told()]

    def finish(self, seconds: float) -> None:
        """Wait for copies under way; what is not there by then is told so."""
        for name, place in self._places.items():
            place.behind.finish(seconds)
            for done in place.open:
                _settle(done, SaveFailed(f"not copied to {name} before the checkpointer was closed"))

    def _copy(self, remote: Remote, job: _Job) -> None:
        try:
            with (
                closing(Registry(self._opened)) as source,
                closing(open_remote(remote.url, key_file=remote.key_path)) as target,
            ):
                send(source, target, f"{self._model}@{job.checkpoint.hex()}", SendOptions(to=self._branch))
        except BaseException as error:
            _settle(job.done, error)
            raise
        with suppress(InvalidStateError):
            job.done.set_result(job.checkpoint)

    def _drop(self, job: _Job) -> None:
        _settle(job.done, Superseded("a newer checkpoint was committed before this one was copied"))


def _settle(done: "Future[CheckpointId]", error: BaseException) -> None:
    with suppress(InvalidStateError):
        done.set_exception(error)
