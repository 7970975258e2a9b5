"""How a checkpoint was made, for those who may not see inside: a predicate of SLSA provenance v1.

What the checkpoint records of itself is told by digest: configuration, patch, data. Of values only those are repeated
that name something public by their nature (commit, versions, ids of data sets), with what looks like a secret replaced.
The training run records all this about itself, so it is worth what its signer is worth: SLSA's level 1 at most.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from cairn.core.errors import NotAllowed, NotFoundError
from cairn.core.ids import CheckpointId, ModelId
from cairn.core.limits import ATTESTED_NAME_CHARS_MAX, ATTESTED_NAMES_MAX
from cairn.core.redaction import REDACTED, redacted, secret_in
from cairn.manifests.provenance import PROVENANCE
from cairn.manifests.values import decode_value, encode_value
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.models import open_meta, saved_at
from cairn.registry.registry import Registry
from cairn.registry.statement import ALGORITHM, rfc3339
from cairn.store.crypto.components import ComponentClass

BUILD_TYPE = "urn:cairn-store:build:checkpoint:v1"
# Nobody but the run itself has watched over it.
BUILDER = "urn:cairn-store:builder:self-reported:v1"
_COMMIT, _BLAKE3 = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}"), re.compile(r"[0-9a-f]{64}")
# Where a description of data has the ids of data sets.
_DATA_NAMES = ("id", "ids", "name", "names", "dataset", "datasets")
_Descriptor = dict[str, Any]


def predicate_of(registry: Registry, model: ModelId, checkpoint: CheckpointId, version: str) -> dict[str, Any]:
    """What can be told of a checkpoint's making; what this user may not read is left out.

    Args:
        version: of the program that tells it.

    Raises:
        IntegrityError: the checkpoint is damaged.
    """
    manifest = CheckpointManifest(registry, model, checkpoint, readable_only=True)
    recorded = _recorded(manifest)
    external: dict[str, Any] = {}
    internal: dict[str, Any] = {"versions": versions} if (versions := _versions(recorded.get("versions"))) else {}
    if manifest.body.step is not None:
        external["step"] = manifest.body.step
    if recorded.get("config") is not None:
        external["config"] = _digested("config", recorded["config"])
    if manifest.body.exactness:
        internal["exactness"] = manifest.body.exactness
    metadata = {}
    with suppress(NotAllowed):
        meta = open_meta(registry, model, manifest.state)
        metadata["finishedOn"] = rfc3339(saved_at(manifest.state, meta) // 1000)
        if meta.step is not None:
            external.setdefault("step", meta.step)
    parents = [
        {"name": f"parent: {parent.relation}", "digest": {ALGORITHM: parent.checkpoint.hex()}}
        for parent in manifest.body.parents
    ]
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": external,
            "internalParameters": internal,
            "resolvedDependencies": [*parents, *_dependencies(recorded)],
        },
        "runDetails": {"builder": {"id": BUILDER, "version": {"cairn": version}}, "metadata": metadata},
    }


def read_record(manifest: CheckpointManifest) -> Any:
    """What a checkpoint says it was made from; None if it does not."""
    for entry in manifest.values(ComponentClass.PROVENANCE):
        if entry.key == PROVENANCE:
            return decode_value(manifest.value_bytes(entry), f"the provenance of {manifest.what}")
    return None


def _recorded(manifest: CheckpointManifest) -> dict[str, Any]:
    """What a training run recorded of itself; empty where there is nothing, or nothing to read."""
    record = None
    if ComponentClass.PROVENANCE in manifest.components:
        with suppress(NotAllowed, NotFoundError):
            record = read_record(manifest)
    return record if isinstance(record, dict) else {}


def _dependencies(recorded: dict[str, Any]) -> Iterator[_Descriptor]:
    code = recorded.get("code")
    if isinstance(code, dict):
        commit, patch = code.get("commit"), code.get("patch")
        if isinstance(commit, str) and _COMMIT.fullmatch(commit):
            told = {"dirty": code["dirty"]} if isinstance(code.get("dirty"), bool) else {}
            yield {"name": "code", "digest": {"gitCommit": commit}, "annotations": told}
        if isinstance(patch, str) and patch:
            yield {"name": "code: patch", "digest": {"sha256": hashlib.sha256(patch.encode()).hexdigest()}}
    files = recorded.get("tokenizer")
    for file in files[:ATTESTED_NAMES_MAX] if isinstance(files, list) else ():
        digest = file.get("blake3") if isinstance(file, dict) else None
        if isinstance(digest, str) and _BLAKE3.fullmatch(digest):
            yield {"name": f"tokenizer: {_named(str(file.get('name')))}", "digest": {"blake3": digest}}
    if recorded.get("data") is not None:
        names = list(dict.fromkeys(_data_names(recorded["data"])))
        yield _digested("data", recorded["data"]) | {"annotations": {"ids": names[:ATTESTED_NAMES_MAX]}}


def _versions(recorded: object) -> dict[str, str]:
    if not isinstance(recorded, dict):
        return {}
    simple = ((name, value) for name, value in recorded.items() if isinstance(name, str) and isinstance(value, str))
    return {_named(name): _named(value) for name, value in list(simple)[:ATTESTED_NAMES_MAX]}


def _data_names(data: Any, named: bool = True) -> Iterator[str]:
    """Ids of data sets: text that stands alone, or under one of `_DATA_NAMES`."""
    if isinstance(data, str):
        if named:
            yield _named(data)
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from _data_names(value, key in _DATA_NAMES)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _data_names(value, named)


def _digested(name: str, value: Any) -> _Descriptor:
    """A value by its digest: of JSON with sorted keys and no white space, where it can be written so."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        data, media = text.encode(), "application/json"
    except (TypeError, ValueError):
        data, media = encode_value(value, name), "application/vnd.cairn.value"
    return {"name": name, "digest": {"sha256": hashlib.sha256(data).hexdigest()}, "mediaType": media}


def _named(text: str) -> str:
    return REDACTED if secret_in(text) else redacted(text)[:ATTESTED_NAME_CHARS_MAX]
