"""Uploads in parts that other tools left in a bucket: old ones are aborted, whatever it takes."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator

import pytest

from cairn.core.clock import SystemClock
from cairn.core.limits import REMOTE_UPLOAD_ABORTS_MAX, REMOTE_UPLOAD_SECONDS_MAX
from cairn.store.backends.s3 import S3Backend
from tests.support.doubles import START_NS, HeldClock
from tests.support.fake_s3 import FakeS3, Fault, Reply, Unfinished, fake_s3, refusal
from tests.support.s3 import BUCKET, Server, fresh_prefix, s3_server

__all__ = ["s3_server"]
DAY_NS = int(REMOTE_UPLOAD_SECONDS_MAX * 1e9)
OLD_NS = START_NS - DAY_NS - 1_000_000_000


@pytest.fixture
def fake() -> Iterator[FakeS3]:
    with fake_s3() as fake:
        yield fake


def test_D19_old_uploads_of_the_store_are_aborted_and_no_others(fake: FakeS3) -> None:
    kept = {
        ("p/objects/a", "young"): Unfinished(START_NS - DAY_NS + 1_000_000_000, [5]),
        ("p2/objects/a", "a neighbour's"): Unfinished(OLD_NS, [7]),
    }
    old = {(f"p/objects/{n}", f"id{m}"): Unfinished(OLD_NS, [10, 20]) for n in ("a", "b c+é", "d") for m in range(3)}
    fake.uploads = {**kept, **old}
    assert fake.backend().reclaim("") == 9 * 30
    assert fake.uploads == kept
    assert sum("uploads=" in target for _, target, _ in fake.requests) == 4, "all pages were read"
    assert fake.backend().reclaim("") == 0


def test_D19_an_abort_is_repeated_until_no_parts_are_left(fake: FakeS3) -> None:
    fake.uploads = {
        ("p/x", "slow"): Unfinished(OLD_NS, [1, 2, 3, 4], outlive=3),
        ("p/y", "empty"): Unfinished(OLD_NS, []),
    }
    assert fake.backend().reclaim("") == 10
    assert fake.uploads == {}
    assert fake.asked("DELETE") == 4 + 1


def test_D19_an_upload_that_will_not_go_is_left_for_the_next_time(fake: FakeS3) -> None:
    fake.uploads = {
        ("p/x", "endless"): Unfinished(OLD_NS, [1] * 30, outlive=30),
        ("p/y", "after"): Unfinished(OLD_NS, [2]),
    }
    assert fake.backend().reclaim("") == 32
    assert list(fake.uploads) == [("p/x", "endless")]
    assert fake.asked("DELETE") == REMOTE_UPLOAD_ABORTS_MAX + 1


def test_a_bucket_without_a_prefix_is_shared_with_others(fake: FakeS3) -> None:
    fake.uploads = {(key, "id"): Unfinished(OLD_NS, [3]) for key in ("objects/a", "films/a")}
    assert fake.backend(prefix="").reclaim("") == 3
    assert list(fake.uploads) == [("films/a", "id")]


def test_a_writer_that_begins_asks_for_no_uploads(fake: FakeS3) -> None:
    assert fake.backend().reclaim("objects/a") == 0
    assert fake.requests == []


TRUNCATED = b"<R><IsTruncated>true</IsTruncated><NextKeyMarker>p/a</NextKeyMarker></R>"


@pytest.mark.parametrize(
    "reply",
    [
        refusal(501, "NotImplemented"), refusal(403, "AccessDenied"), refusal(405, "NotAllowed"), refusal(500, "Oh"),
        Reply(200, b"no listing"), Reply(200, b"<R><Upload><Key>p/a</Key></Upload></R>"), Reply(200, TRUNCATED), None,
    ],
)  # fmt: skip
def test_a_server_that_knows_no_uploads_or_lies_fails_nothing(fake: FakeS3, reply: Reply | None) -> None:
    fake.script = [Fault("GET", call=None, reply=reply)]
    assert fake.backend().reclaim("") == 0
    assert fake.asked("DELETE") == 0


# --- A real server ---------------------------------------------------------------------------------


def begin(s3: S3Backend, key: str) -> str:
    """Begin an upload and send one part of 5 MiB; returns its id."""
    path = f"/{BUCKET}/{key}"
    answer = s3._ask("create", key, "POST", path, query=[("uploads", "")], headers={"content-length": "0"})
    found = [one.text for one in ET.fromstring(answer.body).iter() if one.tag.endswith("UploadId")]
    assert found[0]
    query = [("partNumber", "1"), ("uploadId", found[0])]
    part = memoryview(bytes(5 << 20))
    s3._ask("create", key, "PUT", path, query=query, headers={"content-length": str(len(part))}, parts=[part])
    return found[0]


def uploads(s3: S3Backend, prefix: str) -> list[str]:
    """Keys of the uploads that a server lists."""
    query = [("uploads", ""), ("prefix", prefix)]
    body = s3._ask("list", "", "GET", f"/{BUCKET}", query=query, body_bytes_max=1 << 20).body
    return sorted(one.text or "" for one in ET.fromstring(body).iter() if one.tag.rpartition("}")[2] == "Key")


@pytest.mark.s3
def test_D19_a_real_server_forgets_old_uploads(s3_server: Server) -> None:
    prefix = fresh_prefix()
    s3, keys = s3_server.backend(prefix), [f"{prefix}/objects/{name}" for name in ("a", "b")]
    s3.create("objects/a", [b"an object"])
    for key in keys:
        begin(s3, key)
    assert uploads(s3, prefix) == keys
    assert s3.reclaim("") == 0 and uploads(s3, prefix) == keys, "they are young"
    s3._clock = HeldClock(SystemClock().wall_ns() + DAY_NS + 60_000_000_000)
    assert s3.reclaim("") == 2 * (5 << 20)
    assert uploads(s3, prefix) == []
    assert s3.read("objects/a") == b"an object"
