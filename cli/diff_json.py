"""What `cairn diff --json` prints. Keys are only ever added."""

import os
from typing import TYPE_CHECKING, Any

from cairn.cli.output import json_numbers
from cairn.cli.plain import as_json

if TYPE_CHECKING:
    from cairn.manifests.delta import Delta
    from cairn.manifests.diff import TensorChange
    from cairn.manifests.plaindiff import ItemChange
    from cairn.manifests.schema import TensorEntry
    from cairn.registry.compare import Comparison
    from cairn.registry.comparedfacts import Side
    from cairn.workspace.norms import Measured, Total

Row = dict[str, Any]


def rendered(found: "Comparison", measured: "Measured | None") -> Row:
    """The whole object."""
    facts: Row = {
        "old": found.old.hex(),
        "new": found.new.hex(),
        "sides": {"old": _side(found.sides[0]), "new": _side(found.sides[1])},
        "kinship": {
            "ancestor": found.kinship.ancestor.hex() if found.kinship.ancestor else None,
            "old": found.kinship.old,
            "new": found.kinship.new,
            "relation": found.kinship.relation,
        },
        "facts": [{"group": one.group, **_item(one.item)} for one in found.facts],
        "recorded": {"old": list(found.recorded[0]), "new": list(found.recorded[1])},
        "tensors": [_tensor(one, found, measured is not None) for one in found.tensors],
        "tensors_equal": found.tensors_equal,
        "values": [
            {
                "name": str(one.key),
                "kind": one.kind,
                "component": found.components[one.key],
                "form": one.form,
                "items": [_item(item) for item in one.items],
                "note": one.note,
            }
            for one in found.values
        ],
        "files": [{"path": os.fsdecode(one.path), "kind": one.kind} for one in found.files],
        "bytes_shared": found.bytes_shared,
        "bytes_only_old": found.bytes_only_old,
        "bytes_only_new": found.bytes_only_new,
        "chunks_lost": found.chunks_lost,
        "not_compared": [
            {"component": one.component, "side": one.side, "reason": "not here" if one.granted else "not granted"}
            for one in found.omissions
        ],
    }
    if measured is not None:
        facts["totals"] = [_total(one) for one in measured.totals]
        facts["not_measured"] = [str(key) for key in measured.unread]
    return facts


def _side(side: "Side") -> Row:
    return {
        "checkpoint": side.checkpoint.hex(),
        "model": side.model.hex(),
        "name": side.name,
        "step": side.step,
        "saved_at_ns": side.saved_at,
        "parents": [{"relation": relation, "checkpoint": parent.hex()} for relation, parent in side.parents],
        **as_json({"job": side.job, **side.facts}),
    }


def _item(item: "ItemChange") -> Row:
    old, new = as_json(item.old), as_json(item.new)
    return {"path": list(item.path), "kind": item.kind, "old": old, "new": new, "note": item.note}


def _tensor(change: "TensorChange", found: "Comparison", measured: bool) -> Row:
    def form(entry: "TensorEntry | None") -> Row | None:
        return {"dtype": entry.dtype, "shape": list(entry.shape)} if entry else None

    row: Row = {"name": str(change.key), "kind": change.kind, "component": found.components[change.key]}
    row |= {"old": form(change.old), "new": form(change.new)}
    row |= {"tiles_changed": change.tiles_changed, "tiles": change.tiles}
    if measured:
        row["norms"] = _delta(change.delta) if change.delta else None
    return row


def _delta(delta: "Delta") -> Row:
    norms: Row = dict.fromkeys(("l2_old", "l2_new", "l2_difference", "relative", "largest_difference"))
    if delta.norms is not None:
        one = delta.norms
        relative = {} if one.relative is None else {"relative": one.relative}
        told = {"l2_old": one.old, "l2_new": one.new, "l2_difference": one.difference, **relative}
        norms |= json_numbers({**told, "largest_difference": one.largest})
    counts = {name: getattr(delta, name) for name in ("nan_old", "inf_old", "nan_new", "inf_new")}
    return {"elements": delta.elements, "elements_changed": delta.changed, **norms, **counts}


def _total(total: "Total") -> Row:
    place = {"component": total.component, "scope": total.scope, "group": total.group, "kind": total.kind}
    return {**place, "tensors": total.tensors, **_delta(total.delta)}
