"""Uploads in parts that other tools began and never ended: no listing shows them, and they are paid for.

Cairn itself sends every object in one piece. Who copies a store with another tool may leave some.
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple, Protocol
from urllib.parse import quote, unquote

from cairn.core.errors import ObjectNotFound
from cairn.core.limits import REMOTE_PAGE_BYTES_MAX, REMOTE_UPLOAD_ABORTS_MAX, REMOTE_UPLOAD_SECONDS_MAX
from cairn.store.backends.connections import Answer
from cairn.store.backends.s3_answers import page_of

_Query = list[tuple[str, str]]


class Ask(Protocol):
    """Sends a request, again where that helps; raises what the answer means."""

    def __call__(
        self, action: str, name: str, method: str, path: str, *, query: _Query, body_bytes_max: int | None = ...
    ) -> Answer: ...


class _Upload(NamedTuple):
    key: str
    id: str
    began: datetime


def abort_old(ask: Ask, base: str, prefix: str, now_ns: int) -> int:
    """Abort uploads below a prefix that are older than any that may still go on; returns the bytes freed.

    Args:
        base: path of the bucket.
        prefix: what keys begin with.
        now_ns: by a clock within minutes of the server's, as signatures demand anyway.
    """
    freed = 0
    for upload in _uploads(ask, base, prefix):
        if now_ns / 1e9 - upload.began.timestamp() > REMOTE_UPLOAD_SECONDS_MAX:
            freed += _abort(ask, f"{base}/{quote(upload.key, safe='/~')}", upload)
    return freed


def _uploads(ask: Ask, base: str, prefix: str) -> Iterator[_Upload]:
    after, seen = ("", ""), set[tuple[str, str]]()
    # A server that does not go forward would be asked for ever.
    while after not in seen:
        seen.add(after)
        query = [("uploads", ""), ("prefix", prefix), ("encoding-type", "url")]
        query += [("key-marker", after[0]), ("upload-id-marker", after[1])] if any(after) else []
        page = _page(ask, "the uploads", base or "/", query)
        for one in page.findall("Upload"):
            key, began = unquote(one.findtext("Key") or ""), _time(one.findtext("Initiated") or "")
            if key.startswith(prefix) and began is not None:
                yield _Upload(key, one.findtext("UploadId") or "", began)
        if page.findtext("IsTruncated") == "true":
            after = unquote(page.findtext("NextKeyMarker") or ""), page.findtext("NextUploadIdMarker") or ""


def _time(text: str) -> datetime | None:
    with suppress(ValueError):
        at = datetime.fromisoformat(text)
        return at if at.tzinfo else at.replace(tzinfo=UTC)
    return None


def _abort(ask: Ask, path: str, upload: _Upload) -> int:
    """Abort until no parts are left: one that is on its way meanwhile survives. The next collection goes on."""
    freed = 0
    for aborts in range(REMOTE_UPLOAD_ABORTS_MAX + 1):
        try:
            page = _page(ask, upload.key, path, [("uploadId", upload.id)])
            held = sum(int(size) for one in page.findall("Part") if (size := one.findtext("Size") or "").isdecimal())
            freed = max(freed, held)
            if aborts == REMOTE_UPLOAD_ABORTS_MAX or (aborts and not held):
                break
            ask("delete", upload.key, "DELETE", path, query=[("uploadId", upload.id)])
        except ObjectNotFound:
            break
    return freed


def _page(ask: Ask, name: str, path: str, query: _Query) -> ET.Element:
    return page_of(ask("list", name, "GET", path, query=query, body_bytes_max=REMOTE_PAGE_BYTES_MAX), name)
