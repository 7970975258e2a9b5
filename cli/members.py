"""`cairn members`: who may do what in a store."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from cairn.cli.opening import open_registry, store_options
from cairn.cli.output import count, emit, emit_json, note, safe, table
from cairn.core.errors import UsageError
from cairn.core.ids import short

if TYPE_CHECKING:
    from cairn.registry.registry import Registry
    from cairn.registry.rights import Member

ROLES = ("owner", "writer", "reader", "collector", "auditor")


@click.group(invoke_without_command=True)
@click.pass_context
@store_options
def command(context: click.Context) -> None:
    """Say who may do what in this store; alone, list it."""
    if context.invoked_subcommand is None:
        context.invoke(show, as_json=False, quiet=False)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.option("-q", "--quiet", is_flag=True, help="Print actor ids only.")
@store_options
def show(as_json: bool, quiet: bool) -> None:
    """List owners and members, and what was granted to them."""
    from cairn.registry.people import known_people

    with open_registry() as registry:
        state = registry.state
        rows: list[dict[str, Any]] = []
        for actor in state.owners:
            if actor not in state.members:
                role = "recovery" if actor == state.recovery else "owner"
                rows.append({"actor": actor.hex(), "role": role, "grants": []})
        for actor, member in state.members.items():
            rows.append({"actor": actor.hex(), "role": member.role or None, "grants": grant_rows(registry, member)})
        people = known_people(registry)
    for row in rows:
        row["person"] = people.get(bytes.fromhex(row["actor"]))
    if as_json:
        emit_json(rows)
    elif quiet:
        for row in rows:
            emit(row["actor"])
    else:
        table(
            ("ACTOR", "ROLE", "MODEL", "READ", "WRITE", "PERSON"),
            (
                (row["actor"][:12], row["role"] or "former", *line, row["person"] or "")
                for row in rows
                for line in list(shown_grants(row["grants"])) or [("", "", "")]
            ),
        )


@command.command("add")
@click.argument("identity")
@click.argument("role", type=click.Choice(ROLES))
@store_options
def add(identity: str, role: str) -> None:
    """Make somebody a member: IDENTITY is the line that `cairn identity` prints there."""
    from cairn.registry.members import set_role
    from cairn.registry.rights import Role
    from cairn.store.crypto.signing import PublicIdentity

    public = PublicIdentity.parse(identity)
    with open_registry() as registry:
        set_role(registry, public, Role(role))
        store, tenant = registry.opened.store.hex(), registry.opened.tenant.hex()
    emit(f"{short(public.actor)} is {role} from here on")
    if role in ("writer", "reader"):
        note(f"it may open no model yet: cairn grant MODEL {short(public.actor)} --read weights")
    note(f"tell it the tenant, to compare with 'cairn whoami' on first use: {tenant} (store {store})")


@command.command("role")
@click.argument("identity")
@click.argument("role", type=click.Choice(ROLES))
@store_options
def change(identity: str, role: str) -> None:
    """Change a member's role; IDENTITY is its line, or the first digits of its actor id."""
    from cairn.core.errors import RefusedError
    from cairn.registry.members import find_member, set_role
    from cairn.registry.newmodels import public_of
    from cairn.registry.rights import Role

    with open_registry() as registry:
        actor = find_member(registry, identity)
        member = registry.state.members.get(actor)
        if member is None:
            raise RefusedError(
                f"{short(actor)} has been an owner from the start, and its key is not known here",
                hint="make it a member: cairn members add IDENTITY ROLE, with the line of its identity",
            )
        set_role(registry, public_of(actor, member), Role(role))
        emit(f"{short(actor)} is {role} from here on")
        rotate_and_tell(registry)


@command.command("remove")
@click.argument("identity")
@store_options
def remove(identity: str) -> None:
    """End a membership, and rotate the keys that it came with. What was read before stays read."""
    from cairn.registry.members import find_member, remove_member

    with open_registry() as registry:
        actor = find_member(registry, identity)
        remove_member(registry, actor)
        emit(f"{short(actor)} is no member any more")
        rotate_and_tell(registry)


@command.command("person")
@click.argument("identity")
@click.option("--set", "text", metavar="TEXT", help="Record it: a name, an address, in the place of an earlier one.")
@click.option("--forget", is_flag=True, help="Erase what is recorded, for good.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with what proves it against the log.")
@store_options
def person(identity: str, text: str | None, forget: bool, as_json: bool) -> None:
    """Say who IDENTITY is: its line, or the first digits of an actor id. The log holds a salted commitment."""
    from cairn.registry import people
    from cairn.registry.members import find_actor

    if text is not None and forget:
        raise UsageError("--set and --forget exclude each other", hint="run the command once for each")
    with open_registry() as registry:
        actor = find_actor(registry, identity)
        if forget:
            people.forget_person(registry, actor)
            emit(f"erased who {short(actor)} is")
            return
        if text is not None:
            people.name_person(registry, actor, text)
        told = people.person(registry, actor)
    if as_json:
        commitment = told.commitment().hex()
        emit_json({"actor": actor.hex(), "text": told.text, "salt": told.salt.hex(), "commitment": commitment})
    else:
        emit(f"{short(actor)} is {safe(told.text)}")


def rotate_and_tell(registry: "Registry") -> None:
    """Rotate what is exposed, and say so."""
    from cairn.registry.rotation import rotate_exposed

    rotated = rotate_exposed(registry)
    if rotated:
        note(f"rotated the keys of {count(len(rotated), 'model')}: nobody but the remaining readers opens what follows")
    if registry.state.root_exposed:
        note("the root key is known to a former owner: 'cairn keys rewrap' makes a new one")


def grant_rows(registry: "Registry", member: "Member | None") -> list[dict[str, Any]]:
    """What was granted to a member; a model whose name cannot be read here goes by its id."""
    from cairn.core.ids import ModelId
    from cairn.registry.models import name_or_id
    from cairn.store.crypto.components import ComponentClass

    rows = []
    for model, grant in member.grants.items() if member else ():
        name = name_or_id(registry, ModelId(model)) if model else None
        reads = [ComponentClass(component).name.lower() for component in grant.reads]
        rows.append({"model": name, "read": reads, "write": grant.write})
    return rows


def shown_grants(grants: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Cells of a table."""
    for grant in grants:
        yield grant["model"] or "(all)", ",".join(grant["read"]) or "-", "yes" if grant["write"] else "no"
