"""`cairn branch`: names that commits move."""

import click

from cairn.cli.opening import store_options
from cairn.cli.refs import RefRequest, run_ref_command


@click.command()
@click.argument("selector", metavar="MODEL[@REF]")
@click.argument("name", required=False)
@click.option("-d", "--delete", is_flag=True, help="Remove the branch; its checkpoints stay.")
@click.option("-f", "--force", is_flag=True, help="Move the branch if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print names only; of a change, the checkpoint id.")
@store_options
def command(selector: str, name: str | None, delete: bool, force: bool, as_json: bool, quiet: bool) -> None:
    """List the branches of a model, or make NAME a branch at the selected checkpoint."""
    run_ref_command(RefRequest("branch", selector, name, delete, force, as_json, quiet))
