"""Whether a ref may move to a checkpoint that comes from another store: forward only, and nobody is cut off."""

from cairn.core.errors import ConflictError, RefMoved
from cairn.core.ids import CheckpointId, ModelId, short
from cairn.registry.fold import BRANCH
from cairn.registry.models import ref_kind, walk_history
from cairn.registry.registry import Registry


def check_moves_forward(
    source: Registry,
    target: Registry,
    ref: tuple[ModelId, str, str],
    before: CheckpointId | None,
    checkpoint: CheckpointId,
    rebase: bool,
) -> None:
    """Raise unless a ref of the target, by name and kind, may move from `before` to a checkpoint of the source.

    Args:
        rebase: also if the branch has something that the source does not know.

    Raises:
        ConflictError: the name is another kind of ref there.
        RefMoved: it would not move forward.
    """
    model, name, kind = ref
    held = ref_kind(target, model, name)
    here, there = source.opened.backend.url, target.opened.backend.url
    if held is not None and held != kind:
        raise ConflictError(f"{name!r} is a {held} in {there}", hint="name another ref with --to")
    if before is None or before == checkpoint:
        return
    heads = f"{short(before)} there, {short(checkpoint)} in {here}"
    if kind != BRANCH:
        raise RefMoved(
            f"tag {name!r} exists in {there} and is another ({heads})", hint="tags do not move: name another"
        )
    if is_ancestor(source, model, before, checkpoint):
        return
    if is_ancestor(target, model, checkpoint, before):
        raise RefMoved(f"{kind} {name!r} of {there} is ahead ({heads})", hint="there is nothing new to bring")
    if not rebase:
        raise RefMoved(
            f"{kind} {name!r} of {there} has something that {here} does not know ({heads})",
            hint="bring it to another branch with --to and compare, or append to what is there with --rebase",
        )


def check_keeps_history(
    target: Registry, ref: tuple[ModelId, str], before: CheckpointId | None, checkpoint: CheckpointId
) -> None:
    """A checkpoint that the target has stands where it stands: moving a branch to it must not cut others off.

    Raises:
        RefMoved: it would.
    """
    model, name = ref
    if before is None or is_ancestor(target, model, before, checkpoint):
        return
    raise RefMoved(
        f"{short(checkpoint)} is in {target.opened.backend.url} already, on another line than branch {name!r} "
        f"({short(before)}), which would lose its history",
        hint="commit the content again on top (--always) and send that, or move the branch there with 'cairn branch'",
    )


def is_ancestor(registry: Registry, model: ModelId, old: CheckpointId | None, new: CheckpointId | None) -> bool:
    """Whether a checkpoint stands in another's history, as a store knows it."""
    known = registry.state.models.get(model)
    if known is None or old is None:
        return False
    at: bytes | None = new
    while at is not None:
        at = known.parent_of(at)
        if at == old:
            return True
    # What came later, behind what was there, takes opening every commit's facts to see.
    return any(line.parent == old for line in walk_history(registry, model, new))
