"""Creating and opening stores by location, with the user's own folders and keys."""

import warnings
from collections.abc import Callable
from pathlib import Path

from cairn.core.clock import SystemEntropy
from cairn.core.errors import NotAStore, NotFoundError
from cairn.core.settings import Settings
from cairn.registry.localfiles import KeyHome, kept_identity, read_identity
from cairn.registry.location import backend_at, backend_for_new, make_place
from cairn.registry.opened import KeySource, OpenStore
from cairn.registry.opened import create_store as _create
from cairn.registry.opened import open_store as _open
from cairn.registry.registry import Registry
from cairn.store.crypto.signing import Identity


def create_store(
    location: str | Path,
    *,
    key_file: Path | None = None,
    passphrase: str | None = None,
    service: str | None = None,
) -> tuple[OpenStore, Path | None]:
    """Create a store at `location`/.cairn, or at a URL; returns it and the key file that was written, if any.

    Args:
        key_file: where to write the key file; default: the user's data folder.
        passphrase: protect the store by it instead of a key file.
        service: protect it by a key service instead: `aws-kms:KEY` or `vault-transit:MOUNT/KEY`.

    Raises:
        ObjectExists: something is there already.
    """
    settings = Settings.from_environment()
    backend, _ = backend_for_new(str(location))
    return _create(backend, _home(settings), KeySource(key_file or settings.key_file, passphrase, service=service))


def open_store(
    location: str | Path,
    *,
    key_file: Path | None = None,
    passphrase: str | None = None,
    ask: Callable[[], str | None] | None = None,
    tell: Callable[[str], None] = warnings.warn,
) -> Registry:
    """Open the store at a folder (or the `.cairn/` in it) or URL. Close the result when done.

    Args:
        key_file, passphrase: override `CAIRN_KEY_FILE` and `CAIRN_PASSPHRASE`.
        ask: called for a passphrase that is needed and not given.
        tell: called with what is wrong with the log, where reading goes on all the same.

    Raises:
        NotAStore: there is none.
        NotAllowed: its key is not at hand.
    """
    settings = Settings.from_environment()
    source = KeySource(key_file or settings.key_file, passphrase or settings.passphrase, ask)
    registry = Registry(_open(backend_at(str(location)), _home(settings), source))
    try:
        damaged_from = registry.state.damaged_from
        if damaged_from is not None:
            tell(f"log entry {damaged_from} is damaged or missing: newer checkpoints may be missing here")
        for n in registry.foreign():
            tell(f"log entry {n} is of none of the store's writers, or damaged: 'cairn audit verify' tells more")
    except BaseException:  # a warning that its user made an error
        registry.close()
        raise
    return registry


def open_remote(
    location: str, *, key_file: Path | None = None, ask: Callable[[], str | None] | None = None
) -> Registry:
    """Open another store than the one at work: `CAIRN_KEY_FILE` speaks of that one only.

    Raises:
        NotAStore, NotAllowed: see `open_store`.
    """
    settings = Settings.from_environment()
    source = KeySource(key_file, settings.passphrase, ask)
    try:
        return Registry(_open(backend_at(location), _home(settings), source))
    except NotAStore as error:
        raise NotAStore(
            error.message,
            hint="check the address; 'cairn remote add NAME URL --create' makes an empty store of this tenant there",
        ) from None


def create_twin(location: str, twin: OpenStore, *, passphrase: str | None = None) -> tuple[OpenStore, Path | None]:
    """Create a store of the tenant of another; its key file goes to its usual place.

    Raises:
        ObjectExists: something is there already.
    """
    settings = Settings.from_environment()
    make_place(location)
    backend, _ = backend_for_new(location)
    return _create(backend, _home(settings), KeySource(None, passphrase), twin=twin)


def own_identity(file: Path | None = None) -> Identity:
    """The identity of this user, or the one in another file; it is made on first use.

    Raises:
        IntegrityError, NotAllowed: the file is damaged, or cannot be read.
        StorageError: it is not there and cannot be written.
    """
    entropy = SystemEntropy()
    return kept_identity(file, entropy) if file else _home(Settings.from_environment()).identity(entropy)


def identity_in(file: Path) -> Identity:
    """The identity in a file, to sign with.

    Raises:
        NotFoundError: there is none.
        IntegrityError, NotAllowed: it is damaged, or cannot be read.
    """
    try:
        return read_identity(file)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(
            f"there is no identity in {file}", hint=f"'cairn identity --file {file}' makes one"
        ) from None


def _home(settings: Settings) -> KeyHome:
    return KeyHome(settings.data, settings.state, settings.cache)
