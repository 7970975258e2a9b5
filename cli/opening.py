"""Finding and opening the store that a command works on."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cairn.cli.output import note
from cairn.core.errors import NotAllowed

if TYPE_CHECKING:
    from cairn.registry.localfiles import KeyHome
    from cairn.registry.opened import KeySource
    from cairn.registry.registry import Registry
    from cairn.store.backends.contract import Backend

Command = TypeVar("Command", bound=Callable[..., Any])


class PlainPath(click.Path):
    """A path; an empty one, as an unset variable gives, is refused and does not mean the working folder."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """Parse."""
        if value == "":
            self.fail("a path cannot be empty", parameter, context)
        return super().convert(value, parameter, context)


@dataclass(slots=True)
class StoreChoice:
    """What the options say about the store."""

    store: str | None = None
    key_file: str | None = None


def store_options(command: Command) -> Command:
    """Add `--store` and `--key-file`, which every command takes before or after its name."""

    def remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None and parameter.name is not None:
            setattr(context.ensure_object(StoreChoice), parameter.name, value)

    shared: dict[str, Any] = {"expose_value": False, "callback": remember}
    command = click.option("--key-file", metavar="FILE", help="Key file of the store.", **shared)(command)
    store_help = "Store to use (default: .cairn/ here or above)."
    return click.option("--store", metavar="URL", help=store_help, **shared)(command)


@contextmanager
def open_registry() -> "Iterator[Registry]":
    """The registry of the chosen store.

    Raises:
        NotAStore: there is none.
    """
    from cairn.registry.stores import open_store

    key_file = store_choice().key_file
    registry = open_store(
        store_location(),
        key_file=Path(key_file) if key_file else None,
        ask=ask_passphrase,
        tell=lambda what: note(f"warning: {what}"),
    )
    try:
        yield registry
        tell_unrecorded(registry)
    finally:
        registry.close()


def tell_unrecorded(registry: "Registry") -> None:
    """Say so if a read left no record."""
    if registry.unrecorded:
        where = registry.opened.backend.url
        note(f"note: nothing can be written to {where}: what was read was not protected meanwhile, nor recorded")


def store_place() -> "tuple[Backend, KeyHome, KeySource]":
    """Where the chosen store lies, and what opens it; nothing is opened."""
    from cairn.core.settings import Settings
    from cairn.registry.localfiles import KeyHome
    from cairn.registry.location import backend_at
    from cairn.registry.opened import KeySource

    settings, named = Settings.from_environment(), store_choice().key_file
    source = KeySource(Path(named) if named else settings.key_file, settings.passphrase, ask_passphrase)
    return backend_at(store_location()), KeyHome(settings.data, settings.state, settings.cache), source


def store_location() -> str:
    """Where the chosen store lies: `--store`, else `CAIRN_STORE`, else `.cairn/` here or above.

    Raises:
        NotAStore: there is none.
    """
    from cairn.core.settings import Settings
    from cairn.registry.location import find_store

    return store_choice().store or Settings.from_environment().store or find_store(Path.cwd())


def store_choice() -> StoreChoice:
    """What the options said."""
    return click.get_current_context().ensure_object(StoreChoice)


def ask_passphrase() -> str | None:
    """Ask a person at a terminal for a passphrase; None where there is none."""
    if not os.isatty(0):
        return None
    answer: str = click.prompt("Passphrase", hide_input=True, err=True)
    return answer


def new_passphrase(variable: str) -> str:
    """Ask a person at a terminal for a new passphrase, twice.

    Args:
        variable: of the environment, which the caller found empty.

    Raises:
        NotAllowed: there is no terminal.
    """
    if not os.isatty(0):
        raise NotAllowed("no new passphrase", hint=f"set {variable}, or run where it can be asked for")
    answer: str = click.prompt("New passphrase", hide_input=True, confirmation_prompt=True, err=True)
    return answer
