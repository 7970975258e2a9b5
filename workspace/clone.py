"""A new store of the tenant of another, with what that one has."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from cairn.core.errors import DestinationExists
from cairn.core.ids import ModelId, StoreId
from cairn.core.progress import Progress, Silent
from cairn.registry.delivery import Selection
from cairn.registry.location import FOLDER
from cairn.registry.models import list_refs, model_name
from cairn.registry.registry import Registry
from cairn.registry.remotes import ORIGIN, Remote, Remotes
from cairn.registry.selectors import resolve
from cairn.registry.stores import create_twin, open_remote
from cairn.registry.sync import SendOptions, send

_ALL = Selection()


class CloneResult(msgspec.Struct, frozen=True):
    """A clone. `refs` are `model@ref`; `bytes_fetched` counts stored bytes."""

    store: StoreId
    location: str
    key_file: Path | None
    refs: list[str]
    bytes_fetched: int


def clone(
    url: str,
    folder: Path,
    selectors: Sequence[str] = (),
    key_file: Path | None = None,
    ask: Callable[[], str | None] | None = None,
    progress: Progress | None = None,
    selection: Selection = _ALL,
) -> CloneResult:
    """Create `folder`/.cairn, remember `url` as its remote `origin`, and pull.

    A clone that was interrupted is finished by `pull`: its store stands as soon as it is made.

    Args:
        selectors: what to pull; by default all branches and tags of all models.
        selection: what of each.
        key_file: of the store at `url`.

    Raises:
        DestinationExists: there is a store in the folder.
    """
    if (folder / FOLDER).exists():
        raise DestinationExists(f"{folder / FOLDER} exists", hint="name another folder, or use 'cairn pull' in it")
    remote = open_remote(url, key_file=key_file, ask=ask)
    try:
        for selector in selectors:  # a wrong name is told before anything is made
            resolve(remote, selector)
        opened, written = create_twin(str(folder), remote.opened)
        Remotes(opened).add(ORIGIN, Remote.at(url, key_file))
        local = Registry(opened)
        try:
            fetched, refs = 0, []
            for selector in selectors or _everything(remote):
                sent = send(remote, local, selector, SendOptions(selection=selection), progress or Silent())
                fetched += sent.counts.bytes_stored
                refs.append(selector)
        finally:
            local.close()
    finally:
        remote.close()
    return CloneResult(opened.store, opened.backend.url, written, refs, fetched)


def _everything(remote: Registry) -> Iterator[str]:
    for model in map(ModelId, list(remote.state.models)):
        name = model_name(remote, model)
        for ref in list_refs(remote, model):
            yield f"{name}@{ref.name}"
