"""`cairn clone`: a new store with what another one has."""

from pathlib import Path

import click

from cairn.cli.opening import PlainPath, ask_passphrase, store_choice, store_options
from cairn.cli.output import count, emit, emit_json, note, safe, size
from cairn.cli.progress import ProgressBar
from cairn.cli.requiring import required_signers, requiring_options
from cairn.cli.sending import COMPONENTS, left_out, selection_of


@click.command()
@click.argument("url")
@click.argument("folder", metavar="DIR", type=PlainPath(path_type=Path))
@click.argument("selectors", metavar="[MODEL[@REF]]...", nargs=-1)
@click.option("--only", multiple=True, type=click.Choice(COMPONENTS), help="Leave other components out.")
@click.option("--history", is_flag=True, help="Fetch the checkpoints behind them too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print the id of the new store only.")
@requiring_options
@store_options
def command(
    url: str, folder: Path, selectors: tuple[str, ...], only: tuple[str, ...], history: bool, as_json: bool,
    quiet: bool, require: bool | None, signers: tuple[str, ...],
) -> None:  # fmt: skip
    """Make a store in DIR/.cairn of the tenant of the one at URL, which becomes its remote `origin`.

    Brings the named checkpoints, or all branches and tags of all models. --key-file names the key of the store at URL.
    With --require-signed nothing is made unless a trusted signer vouches for each, and later pulls ask for it too.
    """
    from cairn.workspace.clone import clone

    key_file = store_choice().key_file
    with ProgressBar(quiet or as_json) as progress:
        path = Path(key_file) if key_file else None
        asked = required_signers(require, signers)
        result = clone(url, folder, selectors, path, ask_passphrase, progress, selection_of(only), history, asked)
    if as_json:
        emit_json(
            {
                "store": result.store.hex(),
                "location": result.location,
                "key_file": str(result.key_file),
                "refs": result.refs,
                "bytes_fetched": result.bytes_fetched,
                "older_left": result.older_left,
            }
        )
        return
    if quiet:
        emit(result.store.hex())
    else:
        emit(f"cloned {safe(url)} into {safe(result.location)}")
        emit(f"  {count(len(result.refs), 'branch or tag', 'branches and tags')}, {size(result.bytes_fetched)} fetched")
        if result.older_left:
            emit(f"  {left_out(result.older_left)}: 'cairn pull MODEL@REF --history' in it brings them")
    note(f"Its key lies in {safe(str(result.key_file))}: copy it to a safe place.")
