"""S3 that throttles, loses answers, refuses and lies: what a caller then sees, and what it never sees."""

import logging
import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from email.utils import formatdate

import pytest

from cairn.core.errors import (
    AnswerLost,
    CairnError,
    NotAllowed,
    ObjectExists,
    ObjectNotFound,
    StorageError,
    StorageFull,
    Unavailable,
)
from cairn.core.limits import REMOTE_CONNECT_PATIENCE_SECONDS, REMOTE_PATIENCE_SECONDS
from cairn.store.backends.contract import Backend
from cairn.store.backends.s3 import S3Backend
from tests.contracts.backend import BackendContract, sizes_of
from tests.support.doubles import START_NS, HeldClock
from tests.support.fake_s3 import SECRETS, FakeS3, Fault, Reply, fake_s3, refusal
from tests.support.ports import free_ports


@pytest.fixture
def fake() -> Iterator[FakeS3]:
    with fake_s3() as fake:
        yield fake


class TestFakeS3(BackendContract):
    @pytest.fixture
    def backend(self, fake: FakeS3) -> Backend:
        return fake.backend()


@pytest.fixture
def clock() -> HeldClock:
    return HeldClock()


@pytest.fixture
def s3(fake: FakeS3, clock: HeldClock) -> S3Backend:
    return fake.backend(clock)


BUSY = refusal(503, "SlowDown")
DROP = None
RIVAL = (b"the rival's", {"x-amz-meta-cairn-upload": "0" * 32})
READS: list[Callable[[S3Backend], object]] = [
    lambda s3: s3.read("a"),
    lambda s3: s3.read_into("a", 0, bytearray(2)),
    lambda s3: s3.size("a"),
    lambda s3: list(s3.list()),
    lambda s3: s3.folders(),
    lambda s3: s3.delete("a"),
]


# --- Creations whose outcome is not told ------------------------------------------------------

OURS = {
    "answer lost": Fault("PUT", effect=True, reply=DROP),
    "request lost": Fault("PUT", reply=DROP),
    "500 after success": Fault("PUT", effect=True, reply=refusal(500, "InternalError")),
    "503 after success": Fault("PUT", effect=True, reply=Reply(503)),
    "504 of a proxy": Fault("PUT", effect=True, reply=Reply(504, b"<html>")),
    "throttled after success": Fault("PUT", effect=True, reply=BUSY),
    "repeated by a proxy": Fault("PUT", effect=True, reply=refusal(412, "PreconditionFailed")),
    "race in progress": Fault("PUT", reply=refusal(409, "ConditionalRequestConflict")),
    "answer cut": Fault("PUT", effect=True, reply=Reply(200, b"x", length=9, close=True)),
}


@pytest.mark.parametrize("fault", OURS.values(), ids=OURS)
def test_our_own_object_is_never_a_rivals(fake: FakeS3, s3: S3Backend, fault: Fault) -> None:
    fake.script = [fault]
    s3.create("a", [b"ours"])
    assert (s3.read("a"), sizes_of(s3)) == (b"ours", [("a", 4)])


@pytest.mark.parametrize("fault", OURS.values(), ids=OURS)
@pytest.mark.parametrize("stored", [b"ours", b"other"])
def test_a_rivals_object_is_never_ours(fake: FakeS3, s3: S3Backend, fault: Fault, stored: bytes) -> None:
    fake.objects["p/a"] = stored, RIVAL[1]
    fake.script = [replace(fault, effect=False)]
    with pytest.raises(ObjectExists):
        s3.create("a", [b"ours"])
    assert s3.read("a") == stored


def test_a_lost_race_that_is_answered_by_500_is_a_lost_race(fake: FakeS3, s3: S3Backend) -> None:
    # As Ceph's gateway does; what is sent again is a look, not the object.
    fake.objects["p/a"] = RIVAL
    fake.script = [Fault("PUT", None, reply=refusal(500, "UnknownError"))]
    with pytest.raises(ObjectExists):
        s3.create("a", [b"ours"])
    assert (fake.asked("PUT"), fake.asked("HEAD")) == (1, 1)


def test_a_slow_upload_is_settled_too(fake: FakeS3, s3: S3Backend, clock: HeldClock) -> None:
    def after_long(_: Reply) -> Reply:
        clock.now_ns += int(2 * REMOTE_PATIENCE_SECONDS * 1e9)
        return Reply(502)

    fake.script = [Fault("PUT", effect=True, reply=after_long)]
    s3.create("a", [b"ours"])
    assert (fake.asked("PUT"), fake.asked("HEAD")) == (1, 1)


def test_an_object_without_a_mark_is_somebody_elses(fake: FakeS3, s3: S3Backend) -> None:
    fake.objects["p/a"] = b"ours", {}
    with pytest.raises(ObjectExists):
        s3.create("a", [b"ours"])


@pytest.mark.parametrize("effect", [False, True])
def test_an_outcome_that_nobody_tells_stays_open(fake: FakeS3, s3: S3Backend, clock: HeldClock, effect: bool) -> None:
    fake.script = [Fault("PUT", None, effect, DROP), Fault("HEAD", None, reply=BUSY)]
    with pytest.raises(AnswerLost, match=r"a may or may not exist|whose object") as caught:
        s3.create("a", [b"ours"])
    assert caught.value.retryable
    assert sum(clock.slept) <= REMOTE_PATIENCE_SECONDS


def test_a_refusal_says_nothing_about_an_earlier_try(fake: FakeS3, s3: S3Backend) -> None:
    fake.script = [Fault("PUT", 1, reply=DROP), Fault("PUT", 2, reply=refusal(403, "AccessDenied"))]
    with pytest.raises(AnswerLost):
        s3.create("a", [b"ours"])


def test_who_may_write_only_is_told_of_a_taken_name(fake: FakeS3, s3: S3Backend) -> None:
    fake.objects["p/a"] = RIVAL
    fake.script = [Fault("HEAD", None, reply=Reply(403))]
    with pytest.raises(ObjectExists):
        s3.create("a", [b"ours"])


def test_an_idle_connection_that_the_server_closed_loses_nothing(fake: FakeS3, s3: S3Backend) -> None:
    fake.script = [Fault("HEAD", None, True, lambda true: replace(true, close=True))]
    fake.objects["p/b"] = RIVAL
    for number in range(20):
        s3.size("b")
        s3.create(f"{number}", [b"x"])
    assert fake.asked("PUT") == 20


# --- Throttling -------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", [BUSY, Reply(429), refusal(503, "ServiceUnavailable"), Reply(408)])
@pytest.mark.parametrize("read", READS)
def test_throttled_requests_are_repeated(
    fake: FakeS3, s3: S3Backend, clock: HeldClock, busy: Reply, read: Callable[[S3Backend], object]
) -> None:
    fake.objects["p/a"] = b"ok", {}
    for method in ("GET", "HEAD", "DELETE"):
        fake.script += [Fault(method, call, reply=busy) for call in (1, 2, 3)]
    read(s3)
    assert len(clock.slept) == 3
    # Doubling, with a random part; never less than half, never more than the whole.
    assert all(0.5 * 0.1 * 2**n <= slept <= 0.1 * 2**n for n, slept in enumerate(clock.slept))


@pytest.mark.parametrize("after", ["7", formatdate(START_NS / 1e9 + 7, usegmt=True)])
def test_H30_retry_after_is_heeded(fake: FakeS3, s3: S3Backend, clock: HeldClock, after: str) -> None:
    fake.script = [Fault("PUT", call, reply=refusal(503, "SlowDown", Retry_After=after)) for call in (1, 2)]
    s3.create("a", [b"x"])
    assert clock.slept[0] == pytest.approx(7, abs=0.1)
    assert (len(clock.slept), fake.asked("PUT"), fake.asked("HEAD")) == (2, 3, 0)


@pytest.mark.parametrize(
    "after", ["3600", "999999999", "-5", "soon", "1e9", "Thu, 01 Jan 2099 00:00:00 GMT", "9" * 400]
)
@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_throttling_ends_in_an_error_within_bounds(
    fake: FakeS3, s3: S3Backend, clock: HeldClock, after: str, method: str
) -> None:
    fake.script = [Fault(method, None, reply=refusal(429, "TooManyRequests", Retry_After=after))]
    with pytest.raises(Unavailable, match=r"TooManyRequests.*nothing was changed") as caught:
        s3.create("a", [b"x"]) if method == "PUT" else s3.read("a")
    assert caught.value.retryable and "repeat later" in caught.value.hint
    assert sum(clock.slept) <= REMOTE_PATIENCE_SECONDS
    assert 1 <= fake.asked(method) <= 30
    if after == "3600":
        assert (clock.slept, "for 3600 s" in str(caught.value)) == ([], True)


def test_an_address_without_a_server_is_given_up_soon(fake: FakeS3, clock: HeldClock) -> None:
    fake.port = free_ports(1)[0]
    for call in [*READS, lambda s3: s3.create("a", [b"x"])]:
        clock.slept.clear()
        with pytest.raises(
            Unavailable, match=f"127.0.0.1:{fake.port} does not serve now.*refused.*nothing was changed"
        ):
            call(fake.backend(clock))
        assert sum(clock.slept) <= REMOTE_CONNECT_PATIENCE_SECONDS


# --- Refusals ---------------------------------------------------------------------------------

SKEWED = Reply(
    403, b"<Error><Code>RequestTimeTooSkewed</Code></Error>", {"Date": formatdate(START_NS / 1e9 - 1000, usegmt=True)}
)
REFUSALS: list[tuple[Reply, type[CairnError], str]] = [
    (refusal(400, "ExpiredToken"), NotAllowed, "have expired.*AWS_SESSION_TOKEN"),
    (refusal(403, "RequestExpired"), NotAllowed, "have expired"),
    (refusal(403, "InvalidAccessKeyId"), NotAllowed, "refused.*AWS_ACCESS_KEY_ID"),
    (refusal(403, "SignatureDoesNotMatch"), NotAllowed, "refused.*AWS_SECRET_ACCESS_KEY"),
    (refusal(403, "AccessDenied"), NotAllowed, "do not allow it in bucket bucket"),
    (Reply(401), NotAllowed, "do not allow it"),
    (SKEWED, StorageError, "clocks.*1000 s ahead.*set this machine's clock"),
    (refusal(403, "RequestTimeTooSkewed"), StorageError, "clocks.*too much"),
    (refusal(404, "NoSuchBucket"), StorageError, "no bucket bucket.*AWS_ENDPOINT_URL"),
    (refusal(301, "PermanentRedirect", x_amz_bucket_region="eu-west-3"), StorageError, "AWS_REGION=eu-west-3"),
    (
        Reply(400, b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-3</Region></Error>"),
        StorageError,
        "lies in region eu-west-3.*AWS_REGION=eu-west-3",
    ),
    (refusal(301, "PermanentRedirect", x_amz_bucket_region="\u00e9 " + SECRETS[1]), StorageError, "set AWS_REGION to"),
    (refusal(403, "QuotaExceeded"), StorageFull, "is full"),
    (Reply(507), StorageFull, "is full"),
    (refusal(501, "NotImplemented"), StorageError, "does not know how"),
    (refusal(400, "InvalidRequest"), StorageError, "InvalidRequest"),
    (Reply(418, b"<html>no code"), StorageError, "HTTP status 418"),
]


@pytest.mark.parametrize(
    ("reply", "error", "message"), REFUSALS, ids=lambda v: "" if not isinstance(v, Reply) else None
)
def test_a_refusal_is_named_and_not_repeated(
    fake: FakeS3, s3: S3Backend, clock: HeldClock, reply: Reply, error: type[CairnError], message: str
) -> None:
    fake.script = [Fault(method, None, reply=reply) for method in ("PUT", "GET", "DELETE", "HEAD")]
    # "Not found" to HEAD does not say what is not found.
    reads = [read for read in READS if reply.status != 404 or read is not READS[2]]
    for call in (*reads, lambda s3: s3.create("a", [b"x"])):
        with pytest.raises(error) as caught:
            call(s3)
        assert type(caught.value) is error
        text = " ".join(str(caught.value).split())
        assert re.search(message, text), text
    assert not clock.slept


# --- Answers that are not what was asked for --------------------------------------------------


def test_a_cut_answer_is_asked_for_again(fake: FakeS3, s3: S3Backend) -> None:
    fake.objects["p/a"] = bytes(range(200)), {}
    cut = Fault("GET", effect=True, reply=lambda true: replace(true, body=true.body[:50], length=100, close=True))
    target = bytearray(100)
    for read in (lambda: s3.read("a", 100, 100), lambda: s3.read_into("a", 100, target)):
        fake.script = [replace(cut, call=fake.asked("GET") + 1)]
        answer = read()
        assert (answer if isinstance(answer, bytes) else bytes(target)) == bytes(range(100, 200))


LIES = {
    "all of it": lambda true: Reply(200, bytes(range(200))),
    "too much": lambda true: Reply(206, bytes(range(100, 200)), {"content-range": "bytes 100-199/200"}),
    "elsewhere": lambda true: Reply(206, bytes(10), {"content-range": "bytes 90-99/200"}),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_another_range_than_asked_for_is_refused(fake: FakeS3, s3: S3Backend, lie: Callable[[Reply], Reply]) -> None:
    fake.objects["p/a"] = bytes(range(200)), {}
    fake.script = [Fault("GET", None, True, lie)]
    target = bytearray(10)
    for read in (lambda: s3.read("a", 100, 10), lambda: s3.read_into("a", 100, target)):
        with pytest.raises(StorageError, match=r"more than it was asked for|another range"):
            read()


@pytest.mark.parametrize("size", ["", "-1", "x", "9" * 30, "\u0663"])
def test_a_size_that_is_none_is_refused(fake: FakeS3, s3: S3Backend, size: str) -> None:
    page = f"<ListBucketResult><Contents><Key>p/a</Key><Size>{size}</Size></Contents></ListBucketResult>"
    fake.script = [Fault("GET", None, reply=Reply(200, page.encode()))]
    with pytest.raises(StorageError, match="no size"):
        list(s3.list())


def test_a_listing_that_is_none_is_refused(fake: FakeS3, s3: S3Backend) -> None:
    bomb = b"<!DOCTYPE x [<!ENTITY a 'aaaaaaaaaa'>" + b"".join(
        b"<!ENTITY %c '%s'>" % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(9)
    )
    pages = [b"", b"<html>", b"\xff", bomb + b"]><ListBucketResult>&j;</ListBucketResult>"]
    for page in pages:
        fake.script = [Fault("GET", None, reply=Reply(200, page))]
        with pytest.raises(StorageError, match=r"no listing"):
            list(s3.list())


def test_a_listing_out_of_order_is_refused_and_foreign_names_are_left_out(fake: FakeS3, s3: S3Backend) -> None:
    def page(*keys: str, server: str = "any") -> Reply:
        text = "".join(f"<Contents><Key>p/{key}</Key><Size>1</Size></Contents>" for key in keys)
        return Reply(200, f"<ListBucketResult>{text}</ListBucketResult>".encode(), {"Server": server})

    fake.script = [Fault("GET", None, reply=page("A", "a%20b", "a/", "b", "a%C3%A9", ".x", "c"))]
    assert [one.name for one in s3.list()] == ["b", "c"]
    fake.script = [Fault("GET", None, reply=page("b", "a"))]
    with pytest.raises(StorageError, match="order"):
        list(s3.list())
    fake.script = [Fault("GET", None, reply=page("a/b", "a-b", server="SeaweedFS 4"))]
    assert [one.name for one in s3.list()] == ["a-b", "a/b"]


# --- Secrets ----------------------------------------------------------------------------------


def test_no_secret_is_logged_or_shown(
    fake: FakeS3, clock: HeldClock, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger().setLevel(logging.DEBUG)
    texts = [repr(s3 := fake.backend(clock)), repr(vars(s3)), repr(vars(s3._signer)), repr(s3._signer._source())]
    faults = [
        *OURS.values(),
        *(Fault(method, None, reply=reply) for reply, _, _ in REFUSALS for method in ("PUT", "GET")),
    ]
    faults += [Fault("PUT", None, reply=DROP), Fault("GET", None, reply=DROP), Fault("GET", None, reply=BUSY)]
    for number, fault in enumerate(faults):
        fake.script = [replace(fault, call=None)]
        for call in (*READS, lambda s3, n=number: s3.create(f"{n}", [b"x"])):
            try:
                call(s3)
            except CairnError as error:
                texts += [traceback.format_exc(), repr(error), str(error), repr(error.__context__)]
    assert len(texts) > 100
    signed = {one[2]["authorization"].rpartition("Signature=")[2] for one in fake.requests}
    shown = "\n".join([*texts, caplog.text, *capfd.readouterr()])
    assert len(signed) > 100 and all(SECRETS[2] == one[2]["x-amz-security-token"] for one in fake.requests)
    assert not [secret for secret in (*SECRETS, *signed, "AWS4-HMAC") if secret in shown]


def test_what_is_absent_is_not_found(s3: S3Backend) -> None:
    with pytest.raises(ObjectNotFound, match="there is no object a"):
        s3.read("a", 5)
