"""What is signed of a checkpoint: an in-toto Statement v1 whose predicate is SLSA provenance v1. Pure.

The subject binds all that a verifier compares: tenant, model by id and name, checkpoint, ref, time. The digest is the
checkpoint id, which holders of the tenant's keys can recompute and nobody else can; so its algorithm has a name of its
own, and an outsider who meets it learns nothing about the content.
"""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from cairn.core.errors import BadInput
from cairn.core.ids import HASH_BYTES, RANDOM_ID_BYTES, CheckpointId, ModelId, TenantId

TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
# Keyed BLAKE3 of the manifest body: docs/format/v1.md, section 14.
ALGORITHM = "cairn-checkpoint-v1"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)
_HINT = "it was made by another program, or changed"


class Subject(msgspec.Struct, frozen=True):
    """What a statement is about.

    Args:
        ref, kind: the branch or tag that it says means the checkpoint; empty: it names none.
        signed_at: by the signer's clock, microseconds since 1970.
    """

    tenant: TenantId
    model: ModelId
    model_name: str
    checkpoint: CheckpointId
    ref: str
    kind: str
    signed_at: int

    @property
    def name(self) -> str:
        """As a selector, which tells the two names apart: a ref's holds no `@`."""
        return f"{self.model_name}@{self.ref}" if self.ref else self.model_name


class Statement(NamedTuple):
    """A subject, and the predicate as it stands."""

    subject: Subject
    predicate: dict[str, Any]


def encode_statement(statement: Statement) -> bytes:
    """JSON, in one spelling."""
    subject = statement.subject
    annotations = {
        "tenant": subject.tenant.hex(),
        "model": subject.model.hex(),
        "modelName": subject.model_name,
        "signedAt": rfc3339(subject.signed_at),
    }
    if subject.ref:
        annotations |= {"ref": subject.ref, "kind": subject.kind}
    fields = {
        "_type": TYPE,
        "subject": [
            {"name": subject.name, "digest": {ALGORITHM: subject.checkpoint.hex()}, "annotations": annotations}
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": statement.predicate,
    }
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def decode_statement(payload: bytes, what: str) -> Statement:
    """Inverse of `encode_statement`; fields that it does not know are ignored, as in-toto demands.

    Raises:
        BadInput: it is no statement about one checkpoint.
    """
    try:
        fields = _object(json.loads(payload.decode(), parse_constant=_no_number), "statement")
        if (kind := fields.get("_type")) != TYPE:
            raise ValueError(f"its type is {kind!r:.80}")
        if (kind := fields.get("predicateType")) != PREDICATE_TYPE:
            raise ValueError(f"its predicate is {kind!r:.80}")
        subjects = fields.get("subject")
        if not isinstance(subjects, list) or len(subjects) != 1:
            raise ValueError("it does not have exactly one subject")
        subject = _subject(_object(subjects[0], "subject"))
        return Statement(subject, _object(fields.get("predicate") or {}, "predicate"))
    except (ValueError, RecursionError, OverflowError) as error:
        raise BadInput(f"{what} is no statement about a checkpoint: {error}", hint=_HINT) from None


def _subject(fields: dict[str, Any]) -> Subject:
    told = _object(fields.get("annotations"), "annotations of its subject")
    digest = _object(fields.get("digest"), "digest of its subject")
    ref, kind = told.get("ref", ""), told.get("kind", "")
    if not isinstance(ref, str) or not isinstance(kind, str) or bool(ref) != bool(kind):
        raise ValueError("its ref or the kind of its ref is missing")
    subject = Subject(
        TenantId(_bytes(told, "tenant", RANDOM_ID_BYTES)),
        ModelId(_bytes(told, "model", RANDOM_ID_BYTES)),
        _text(told, "modelName"),
        CheckpointId(_bytes(digest, ALGORITHM, HASH_BYTES)),
        ref,
        kind,
        _microseconds(_text(told, "signedAt")),
    )
    if fields.get("name") != subject.name:
        raise ValueError("its name is not that of its model and ref")
    return subject


def rfc3339(microseconds: int) -> str:
    """A time as text, to the microsecond."""
    return (_EPOCH + timedelta(microseconds=microseconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _microseconds(text: str) -> int:
    if not _TIME.fullmatch(text):
        raise ValueError("its time is not of the form 2000-01-01T00:00:00.000000Z")
    return (datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


def _no_number(text: str) -> None:
    raise ValueError(f"it holds {text}, which is no JSON")


def _object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"its {name} is no object")
    return value


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"its {name} is missing")
    value.encode()
    return value


def _bytes(fields: dict[str, Any], name: str, length: int) -> bytes:
    text = _text(fields, name)
    if not re.fullmatch(f"[0-9a-f]{{{2 * length}}}", text):
        raise ValueError(f"its {name} is not {2 * length} hexadecimal digits")
    return bytes.fromhex(text)
