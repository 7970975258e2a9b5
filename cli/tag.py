"""`cairn tag`: names that stay."""

import click

from cairn.cli.opening import store_options
from cairn.cli.refs import RefRequest, run_ref_command


@click.command()
@click.argument("selector", metavar="MODEL[@REF]")
@click.argument("name", required=False)
@click.option("-d", "--delete", is_flag=True, help="Remove the tag; its checkpoints stay.")
@click.option("-f", "--force", is_flag=True, help="Move the tag if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print names only; of a change, the checkpoint id.")
@store_options
def command(selector: str, name: str | None, delete: bool, force: bool, as_json: bool, quiet: bool) -> None:
    """List the tags of a model, or make NAME a tag at the selected checkpoint."""
    run_ref_command(RefRequest("tag", selector, name, delete, force, as_json, quiet))
