"""`cairn whoami`: who one is in a store, and what one may do there."""

import click

from cairn.cli.opening import open_registry, store_options
from cairn.cli.output import emit, emit_json, table
from cairn.core.ids import short


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print your actor id only.")
@store_options
def command(as_json: bool, quiet: bool) -> None:
    """Print your actor id, your role in this store, and what was granted to you."""
    from cairn.cli.members import grant_rows, shown_grants
    from cairn.registry.rights import Role

    with open_registry() as registry:
        opened, state = registry.opened, registry.state
        actor = opened.identity.actor
        member = state.members.get(actor)
        role: str = Role.OWNER if opened.identity_among(state.owners) else member.role if member else ""
        grants = grant_rows(registry, member)
    found = {
        "actor": actor.hex(),
        "role": role or None,
        "store": opened.store.hex(),
        "tenant": opened.tenant.hex(),
        "grants": grants,
    }
    if as_json:
        emit_json(found)
    elif quiet:
        emit(actor.hex())
    else:
        emit(f"{short(actor)} is {role or 'nobody'} in store {opened.store.hex()} of tenant {opened.tenant.hex()}")
        table(("MODEL", "READ", "WRITE"), shown_grants(grants))
