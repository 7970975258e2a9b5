"""Checkpoints that a damaged log no longer shows: their bodies are still there, and say whose they were."""

from collections.abc import Iterable

from cairn.core.canonical import decode
from cairn.core.errors import CairnError
from cairn.core.ids import parse_object_name, short
from cairn.gc.report import Findings
from cairn.manifests.schema import Body
from cairn.registry.checkpoint import checkpoint_id
from cairn.registry.opened import OpenStore
from cairn.registry.state import State
from cairn.store.crypto.objects import ObjectKind, open_object


def report_orphans(opened: OpenStore, state: State, leftovers: Iterable[str], findings: Findings) -> None:
    """Blame the first damaged log entry for each leftover body of a checkpoint that the state does not hold."""
    entry = next(problem.object for problem in findings.problems)
    known = {checkpoint for model in state.kept_models().values() for checkpoint in model.checkpoints}
    for name in sorted(leftovers):
        if parse_object_name(name)[2] != "body":
            continue
        try:
            sealed = opened.backend.read(name)
            plain = open_object(opened.secrets.k_ckpt, opened.store, ObjectKind.BODY, sealed, name)
            model = decode(plain, Body, name).model
        except CairnError:
            continue
        checkpoint = checkpoint_id(opened.secrets.k_ckpt, plain)
        if checkpoint not in known:
            what = f"checkpoint {short(checkpoint)} cannot be reached without it, or was never committed: see {name}"
            findings.add(entry, what, [(model.hex(), checkpoint.hex())])
