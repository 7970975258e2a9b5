"""`cairn doctor`: what state is the store in, and what should be done?"""

from typing import TYPE_CHECKING

import click

from cairn.cli import exits
from cairn.cli.opening import ask_passphrase, open_registry, store_location, store_options
from cairn.cli.output import emit, emit_json, safe

if TYPE_CHECKING:
    from cairn.gc.remark import Remark
    from cairn.registry.registry import Registry


@click.command()
@click.option("--remotes", is_flag=True, help="Try whether the remotes can be reached too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print only what needs a hand.")
@store_options
def command(remotes: bool, as_json: bool, quiet: bool) -> int:
    """Explain the store's state and what to do, without reading it all.

    Exit code 3 says that something needs a hand.
    """
    from cairn.core.errors import CairnError
    from cairn.gc.doctor import examine
    from cairn.gc.remark import ACT, Remark

    where = store_location()
    try:
        with open_registry() as registry:
            remarks = examine(registry) + _remotes(registry, remotes)
    except CairnError as error:
        text = f"{where} does not open: {error.message}"
        remarks = [Remark("store", ACT, text, error.hint or "cairn verify tells what is damaged")]
    needs_a_hand = any(one.level == ACT for one in remarks)
    if as_json:
        emit_json({"ok": not needs_a_hand, "remarks": [_as_json(one) for one in remarks]})
    else:
        _render([one for one in remarks if one.level == ACT or not quiet])
    return exits.REFUSED if needs_a_hand else exits.OK


def _remotes(registry: "Registry", reach: bool) -> "list[Remark]":
    from cairn.core.errors import CairnError
    from cairn.gc.remark import ACT, FINE, NOTE, Remark
    from cairn.registry.remotes import Remotes
    from cairn.registry.stores import open_remote

    try:
        known = Remotes(registry.opened).all()
    except CairnError as error:
        return [Remark("remotes", ACT, error.message, error.hint)]
    if not known:
        return [
            Remark("remotes", NOTE, "there is no remote: this is the only copy", "cairn remote add NAME URL --create")
        ]
    if not reach:
        return [Remark("remotes", FINE, f"{len(known)} known: {', '.join(known)}; --remotes tries to reach them")]
    remarks = []
    for name, remote in known.items():
        try:
            open_remote(remote.url, key_file=remote.key_path, ask=ask_passphrase).close()
            remarks.append(Remark("remotes", FINE, f"{name} ({remote.url}) can be reached"))
        except CairnError as error:
            remarks.append(Remark("remotes", ACT, f"{name} ({remote.url}): {error.message}", error.hint))
    return remarks


def _as_json(one: "Remark") -> dict[str, str]:
    return {"topic": one.topic, "level": one.level, "text": one.text, "next": one.next}


def _render(remarks: "list[Remark]") -> None:
    marks = {"fine": "ok", "note": "--", "act": "!!"}
    for one in remarks:
        emit(f"{marks[one.level]}  {one.topic:<16} {safe(one.text)}")
        if one.next:
            emit(f"{'':<20} next: {safe(one.next)}")
