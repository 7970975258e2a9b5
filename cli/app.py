"""The `cairn` command: finds a subcommand, runs it, turns errors into exit codes."""

import os
import signal
import sys
import threading
from importlib import import_module

import click

from cairn import __version__
from cairn.cli import exits
from cairn.cli.opening import store_options
from cairn.cli.output import note, safe
from cairn.core.errors import CairnError, IntegrityError, UsageError

# In the order of `cairn --help`: each is a module of this package of the same name, with `_` for `-`.
COMMANDS = (
    "init", "commit", "checkout", "remote", "push", "pull", "clone", "ls", "log", "lineage", "show", "diff", "report",
    "tag", "branch", "sign", "attest", "trust", "retain", "delete", "hold", "receipt", "verify", "doctor", "gc",
    "stats", "why-kept", "why-gone", "audit", "identity", "whoami", "members", "grant", "revoke", "keys",
)  # fmt: skip

_HINT_OF_DAMAGE = "run 'cairn verify --full' to see what is affected; '--repair' mends what can be mended"


def module_of(name: str) -> str:
    """Module of a command, in this package."""
    return name.replace("-", "_")


class _LazyCommands(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = import_module(f"cairn.cli.{module_of(name)}").command
        return command


@click.command(cls=_LazyCommands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="cairn")
@store_options
def cairn() -> None:
    """Cairn: a content-addressed checkpoint store and registry for large-model training.

    A selector names a checkpoint: MODEL (the tip of main), MODEL@REF, MODEL@step:N or MODEL@ID.
    """


def _end_in_order_on_sigterm() -> None:
    """Treat a scheduler's SIGTERM as an interrupt, so that sessions and temporary files go."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupt)


def _check_working_folder() -> None:
    try:
        os.getcwd()
    except OSError:
        raise UsageError("the working folder does not exist any more", hint="change to another folder") from None


def run(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        _end_in_order_on_sigterm()
        _check_working_folder()
        code = cairn.main(args=arguments, prog_name="cairn", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else exits.OK
    except CairnError as error:
        note(f"error: {safe(error.message)}")
        hint = error.hint or (_HINT_OF_DAMAGE if isinstance(error, IntegrityError) else "")
        if hint:
            note(f"next:  {safe(hint)}")
        return exits.exit_code(error)
    except click.ClickException as error:
        error.show()
        return exits.USAGE
    except (KeyboardInterrupt, click.Abort):
        note("interrupted: what was committed before is intact, and the rest is not visible; run the command again")
        return exits.INTERRUPTED
    except (MemoryError, RuntimeError) as error:
        note(f"error: the system has no room for it: {error}")
        note("next:  allow more memory or threads (ulimit -v, ulimit -u) and run the command again")
        return exits.ERROR
    except BrokenPipeError:
        # The reader of our output went away; keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return exits.ERROR
    except OSError as error:
        note(f"error: {safe(str(error))}")
        return exits.ERROR
