"""Statements are in-toto's, each has one spelling, and a changed one is refused or tells of another subject."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.core.errors import BadInput
from cairn.core.ids import CheckpointId, ModelId, TenantId
from cairn.registry.statement import Statement, Subject, decode_statement, encode_statement, rfc3339

NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)
REFS = NAMES.filter(lambda name: "@" not in name)
SUBJECT = Subject(TenantId(b"t" * 16), ModelId(b"m" * 16), "model", CheckpointId(b"c" * 32), "main", "branch", 1)


def changed(**changes: Any) -> bytes:
    """The statement about `SUBJECT` with fields of its top, or by `subject__x` of its subject, changed."""
    fields = json.loads(encode_statement(Statement(SUBJECT, {})))
    for path, value in changes.items():
        *way, last = path.split("__")
        place = fields
        for step in way:
            place = place["subject"][0] if step == "subject" else place[step]
        place[last] = value
    return json.dumps(fields).encode()


@given(NAMES, REFS | st.just(""), st.integers(0, 4 * 10**15))
def test_any_names_come_back_as_they_are(model: str, ref: str, at: int) -> None:
    subject = Subject(SUBJECT.tenant, SUBJECT.model, model, SUBJECT.checkpoint, ref, "tag" if ref else "", at)
    assert decode_statement(encode_statement(Statement(subject, {"a": 1})), "it") == (subject, {"a": 1})


def test_it_has_the_form_that_in_toto_demands() -> None:
    fields = json.loads(encode_statement(Statement(SUBJECT, {"buildDefinition": {}})))
    assert fields["_type"] == "https://in-toto.io/Statement/v1"
    assert fields["predicateType"] == "https://slsa.dev/provenance/v1"
    (subject,) = fields["subject"]
    assert subject["name"] == "model@main" and subject["digest"] == {"cairn-checkpoint-v1": "63" * 32}
    assert subject["annotations"]["signedAt"] == "1970-01-01T00:00:00.000001Z"


def test_fields_that_nobody_knows_are_ignored() -> None:
    assert decode_statement(changed(extra=1, subject__extra=2, subject__annotations__extra=3), "it").subject == SUBJECT


def test_times_are_exact() -> None:
    assert rfc3339(1_767_225_600_123_456) == "2026-01-01T00:00:00.123456Z"


@pytest.mark.parametrize(
    "changes",
    [
        {"_type": "https://in-toto.io/Statement/v0.1"}, {"predicateType": "https://slsa.dev/provenance/v0.2"},
        {"subject": []}, {"subject": [{}, {}]}, {"subject": [1]}, {"subject": None}, {"predicate": [1]},
        {"predicate": {"x": float("nan")}},
        {"subject__digest": {}}, {"subject__digest": {"sha256": "63" * 32}}, {"subject__digest": None},
        {"subject__digest": {"cairn-checkpoint-v1": "63" * 31}},
        {"subject__digest": {"cairn-checkpoint-v1": "C3" * 32}},
        {"subject__name": "model@other"}, {"subject__name": None}, {"subject__annotations": None},
        {"subject__annotations__modelName": "other"}, {"subject__annotations__ref": "other"},
        {"subject__annotations__ref": ""}, {"subject__annotations__ref": 1}, {"subject__annotations__kind": ""},
        {"subject__annotations__tenant": "xx" * 16}, {"subject__annotations__model": "6d" * 15},
        {"subject__annotations__signedAt": "2026-01-01T00:00:00Z"}, {"subject__annotations__modelName": "\ud800"},
        {"subject__annotations__signedAt": "2026-13-01T00:00:00.000000Z"}, {"subject__annotations__signedAt": 5},
    ],
)  # fmt: skip
def test_what_is_no_statement_about_a_checkpoint_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="it is no statement about a checkpoint"):
        decode_statement(changed(**changes), "it")


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"[" * 100_000, b"nonsense"])
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(BadInput):
        decode_statement(data, "it")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
PLACES = st.sampled_from(
    ["_type", "predicateType", "predicate", "subject", "subject__name", "subject__digest", "subject__annotations"]
    + [f"subject__annotations__{name}" for name in ("tenant", "model", "modelName", "ref", "kind", "signedAt")]
)


@given(PLACES, JSON)
def test_whatever_stands_in_a_field_is_refused_or_taken_for_what_it_is(place: str, value: object) -> None:
    data = changed(**{place: value})
    try:
        statement = decode_statement(data, "it")
    except BadInput:
        return
    assert decode_statement(encode_statement(statement), "it") == statement
