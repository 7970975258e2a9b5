"""A new store of the tenant of another, with what that one has."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cairn.core.errors import DestinationExists, NotAStore
from cairn.core.ids import ModelId, StoreId
from cairn.core.progress import Progress, Silent
from cairn.core.shown import Shown
from cairn.registry.delivery import Selection
from cairn.registry.location import new_folder
from cairn.registry.models import list_refs, model_name, walk_history
from cairn.registry.policy import carry_policy
from cairn.registry.registry import Registry
from cairn.registry.remotes import ORIGIN, Remote, Remotes
from cairn.registry.requirement import check_signed
from cairn.registry.selectors import resolve
from cairn.registry.stores import create_twin, open_remote
from cairn.registry.sync import SendOptions, send
from cairn.registry.trust import trust_in

_ALL = Selection()


class CloneResult(Shown, frozen=True):
    """A clone. `refs` are `model@ref`; `bytes_fetched` counts stored bytes.

    Args:
        older_left: checkpoints behind those of `refs` that were not fetched.
    """

    store: StoreId
    location: str
    key_file: Path | None
    refs: list[str]
    bytes_fetched: int
    older_left: int


def clone(
    url: str,
    folder: Path,
    selectors: Sequence[str] = (),
    key_file: Path | None = None,
    ask: Callable[[], str | None] | None = None,
    progress: Progress | None = None,
    selection: Selection = _ALL,
    history: bool = False,
    signed_by: tuple[str, ...] | None = None,
) -> CloneResult:
    """Create `folder`/.cairn, remember `url` as its remote `origin`, and pull.

    A clone that was interrupted is finished by `pull`: its store stands as soon as it is made.

    Args:
        selectors: what to pull; by default all branches and tags of all models.
        selection: what of each.
        history: pull the checkpoints behind them too.
        key_file: of the store at `url`.
        signed_by: lines of identities; nothing is made unless one of them vouches for each of `selectors`, nor pulled
            later. Empty: whom this user has noted. None: no signature is asked for.

    Raises:
        RefusedError: nobody vouches for one.
        DestinationExists: there is a store in the folder.
    """
    place = new_folder(folder)
    if place.exists():
        raise DestinationExists(f"{place} exists", hint="name another folder, or use 'cairn pull' in it")
    try:
        remote = open_remote(url, key_file=key_file, ask=ask)
    except NotAStore as error:
        raise NotAStore(error.message, hint="check the address; a clone is made of a store that is there") from None
    try:
        trust = trust_in(remote.opened, signed_by) if signed_by is not None else None
        wanted = tuple(selectors) or tuple(_everything(remote) if trust else ())
        for selector in wanted:  # a wrong name is told before anything is made
            found = resolve(remote, selector)
            if trust is not None:
                check_signed(remote, *found, selector, trust)
        opened, written = create_twin(str(folder), remote.opened)
        Remotes(opened).add(ORIGIN, Remote.at(url, key_file, signed_by is not None))
        local = Registry(opened)
        try:
            carry_policy(remote, local)
            fetched, refs, left = 0, [], set[bytes]()
            for selector in wanted or _everything(remote):
                options = SendOptions(selection=selection, history=history, trust=trust)
                sent = send(remote, local, selector, options, progress or Silent())
                fetched += sent.counts.bytes_stored
                refs.append(selector)
                left.update(line.id for line in walk_history(remote, sent.model, sent.checkpoint))
            left -= {one for model in local.state.models.values() for one in model.checkpoints}
        finally:
            local.close()
    finally:
        remote.close()
    return CloneResult(opened.store, opened.backend.url, written, refs, fetched, len(left))


def _everything(remote: Registry) -> Iterator[str]:
    for model in map(ModelId, list(remote.state.models)):
        name = model_name(remote, model)
        for ref in list_refs(remote, model):
            yield f"{name}@{ref.name}"
