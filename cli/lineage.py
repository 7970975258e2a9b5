"""`cairn lineage`: what a checkpoint was made from, and what was made from it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from cairn.cli.opening import open_registry, store_options
from cairn.cli.output import emit, emit_json, note, safe
from cairn.core.errors import CairnError, UsageError
from cairn.core.ids import short

if TYPE_CHECKING:
    from cairn.core.ids import CheckpointId
    from cairn.registry.lineage import Lineage, Node
    from cairn.registry.registry import Registry

_Facts = dict["CheckpointId", dict[str, Any]]


@click.command()
@click.argument("selector", metavar="MODEL[@REF]")
@click.option("--up", is_flag=True, help="What it was made from; the default.")
@click.option("--down", is_flag=True, help="What was made from it.")
@click.option("--depth", type=click.IntRange(min=1), help="Go so many steps at most.")
@click.option(
    "--format", "form", type=click.Choice(["tree", "dot", "json"]), default="tree", show_default=True,
    help="How it is written: for people, for Graphviz, or as one JSON object.",
)  # fmt: skip
@click.option("--json", "form", flag_value="json", help="The same as --format json.")
@click.option("-q", "--quiet", is_flag=True, help="Print the ids of the checkpoints only.")
@store_options
def command(selector: str, up: bool, down: bool, depth: int | None, form: str, quiet: bool) -> None:
    """Show what a checkpoint was made from, or what was made from it, across the models of the store."""
    from cairn.registry.lineage import ancestors, descendants, resolve_start

    if up and down:
        raise UsageError("--up and --down exclude each other", hint="run the command once for each")
    with open_registry() as registry:
        start = resolve_start(registry, selector)
        lineage = (descendants if down else ancestors)(registry, start, depth)
        facts = {node.id: _facts(registry, node) for node in lineage.nodes}
    if form == "json":
        emit_json(_as_json(lineage, facts, "down" if down else "up"))
        return
    ids = (node.id.hex() for node in lineage.nodes)
    for line in ids if quiet else _dot(lineage, facts) if form == "dot" else _tree(lineage, facts, down):
        emit(line)
    if not lineage.complete:
        note(f"note: only the nearest {len(lineage.nodes)} checkpoints are shown")


def _facts(registry: "Registry", node: "Node") -> dict[str, Any]:
    """What is told of a checkpoint; a model or step that this user cannot read is None."""
    from cairn.registry.models import model_name, open_meta

    name = step = None
    try:
        if node.model is not None:
            name = model_name(registry, node.model)
            step = open_meta(registry, node.model, node.state).step if node.state is not None else None
    except CairnError:
        pass
    model = node.model.hex() if node.model is not None else None
    return {"checkpoint": node.id.hex(), "model": model, "name": name, "step": step, "standing": str(node.standing)}


def _label(node: "CheckpointId", facts: _Facts) -> str:
    told = facts[node]
    step = f"step {told['step']}" if told["step"] is not None else ""
    standing = f"[{told['standing']}]" if told["standing"] != "here" else ""
    return "  ".join(filter(None, (short(node), safe(told["name"] or told["model"] or ""), step, standing)))


def _tree(lineage: "Lineage", facts: _Facts, down: bool) -> Iterator[str]:
    """A line a checkpoint; what alone leads on stands below it, several are indented."""
    onwards: dict[CheckpointId, list[tuple[CheckpointId, str]]] = {}
    for link in lineage.links:
        near, far = (link.parent, link.child) if down else (link.child, link.parent)
        onwards.setdefault(near, []).append((far, link.relation))
    shown: set[CheckpointId] = set()
    waiting = [(lineage.start, "", "", "")]
    while waiting:
        node, lead, indent, relation = waiting.pop()
        following = onwards.get(node, [])
        again = "  (see above)" if node in shown and following else ""
        yield f"{lead}{_label(node, facts)}{f'  ({safe(relation)})' if relation else ''}{again}"
        if node in shown:
            continue
        shown.add(node)
        if len(following) == 1:
            waiting.append((following[0][0], indent, indent, following[0][1]))
            continue
        last = len(following) - 1
        for number, (far, how) in reversed(list(enumerate(following))):
            lead, deeper = ("`- ", "   ") if number == last else ("|- ", "|  ")
            waiting.append((far, indent + lead, indent + deeper, how))


def _dot(lineage: "Lineage", facts: _Facts) -> Iterator[str]:
    """A graph for Graphviz, with arrows from parent to child."""
    yield "digraph lineage {"
    for node in lineage.nodes:
        style = "" if facts[node.id]["standing"] == "here" else ", style=dashed"
        yield f"  {_quoted(node.id.hex())} [label={_quoted(_label(node.id, facts))}{style}];"
    for link in lineage.links:
        ends = f"{_quoted(link.parent.hex())} -> {_quoted(link.child.hex())}"
        yield f"  {ends} [label={_quoted(safe(link.relation))}];"
    yield "}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _as_json(lineage: "Lineage", facts: _Facts, direction: str) -> dict[str, Any]:
    return {
        "start": lineage.start.hex(),
        "direction": direction,
        "checkpoints": [facts[node.id] for node in lineage.nodes],
        "links": [
            {"child": link.child.hex(), "parent": link.parent.hex(), "relation": link.relation}
            for link in lineage.links
        ],
        "complete": lineage.complete,
    }
