"""What the commands share that take a checkpoint only if somebody vouches for it."""

import click

from cairn.cli.opening import Command
from cairn.core.errors import UsageError


def requiring_options(command: Command) -> Command:
    """Add `--require-signed` and `--signer`."""
    command = click.option(
        "--signer", "signers", multiple=True, metavar="IDENTITY", help="Whose signature counts, instead of the noted."
    )(command)
    return click.option(
        "--require-signed/--no-require-signed", "require", default=None,
        help="Refuse what no trusted signer vouches for.",
    )(command)  # fmt: skip


def required_signers(require: bool | None, signers: tuple[str, ...], noted: bool = False) -> tuple[str, ...] | None:
    """Lines of those whose signature is asked for, empty for whom the user has noted; None if none is asked for.

    Args:
        require: what the option said, if it was there.
        noted: what holds for the remote.
    """
    from cairn.core.settings import Settings

    if signers and require is False:
        raise UsageError("--signer asks for a signature, and --no-require-signed for none", hint="name one of them")
    if require is None:
        require = bool(signers) or noted or Settings.from_environment().require_signed
    return signers if require else None
