"""What S3 answers, as the contract's errors: each names the object, the rule and the next step.

Servers say one thing in several ways; all that were met are here. Answers are quoted by their code only: their
texts repeat requests, and with them keys' names and signatures.
"""

import re
import xml.etree.ElementTree as ET
from email.utils import parsedate_to_datetime

from cairn.core.clock import Clock
from cairn.core.errors import CairnError, NotAllowed, ObjectNotFound, StorageError, StorageFull
from cairn.store.backends.connections import Answer

_NAMESPACE = re.compile(r"^\{[^}]*\}")
_CODE = re.compile(rb"<Code>\s*([A-Za-z0-9.]{1,64})\s*</Code>")
_REGION = re.compile(rb"<Region>\s*([a-z0-9-]{1,64})\s*</Region>")
_REGION_TEXT = re.compile(rb"expecting '([a-z0-9-]{1,64})'")

# The server asks for patience; the request had no effect.
_THROTTLED = {"SlowDown", "SlowDownRead", "SlowDownWrite", "TooManyRequests", "Throttling", "ThrottlingException"}
_THROTTLED |= {"RequestLimitExceeded", "RequestThrottled", "BandwidthLimitExceeded"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
_UNKNOWN = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidClientTokenId"}
_REGIONS = {"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed"}
_FULL = {"QuotaExceeded", "InsufficientStorage", "StorageFull", "XMinioStorageFull", "InsufficientCapacity"}
_FREE = "free space or enlarge the quota where the bucket lies, then repeat"
_RENEW = "renew them: log in again, or set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN anew"
_CHECK_KEYS = "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_ENDPOINT_URL"


def code_of(answer: Answer) -> str:
    """The error code that an answer names, or its status."""
    found = _CODE.search(answer.body)
    return found[1].decode() if found else f"HTTP status {answer.status}"


def page_of(answer: Answer, what: str) -> ET.Element:
    """A page of a listing, its elements without namespaces.

    Raises:
        StorageError: the answer is none.
    """
    try:
        page = ET.fromstring(answer.body)
    except ET.ParseError:
        raise StorageError(f"cannot list {what or 'the store'}: the answer is no listing of S3") from None
    for element in page.iter():
        element.tag = _NAMESPACE.sub("", element.tag)
    return page


def throttled(answer: Answer) -> bool:
    """Whether the server turned the request away unread, to be asked again later."""
    return answer.status == 429 or code_of(answer) in _THROTTLED


def passing(answer: Answer) -> bool:
    """Whether the same request may well succeed later. Unless `throttled`, it may have had its effect."""
    code = code_of(answer)
    # 409 is a race in progress (OperationAborted, ConditionalRequestConflict), but for buckets of somebody else.
    race = answer.status == 409 and not code.startswith("Bucket")
    return race or throttled(answer) or answer.status in (408, 500, 502, 503, 504) or code == "RequestTimeout"


def retry_after(answer: Answer, clock: Clock) -> float | None:
    """Seconds that the server asks to be left alone."""
    value = answer.headers.get("retry-after", "").strip()
    if value.isdecimal() and len(value) < 10:
        return float(value)
    seconds = _seconds_until(value, clock)
    return None if seconds is None else max(0.0, seconds)


def failure(answer: Answer, action: str, name: str, bucket: str, clock: Clock) -> CairnError:
    """The error that an answer is."""
    code, told = code_of(answer), f"cannot {action} {name or 'the store'}"
    if code == "NoSuchBucket":
        return StorageError(
            f"{told}: there is no bucket {bucket}; nothing was changed",
            hint="create the bucket, or check the store's address and AWS_ENDPOINT_URL",
        )
    if code in _REGIONS or code.startswith("IllegalLocationConstraint") or answer.status in (301, 307):
        region = _region(answer)
        lies = f"lies in region {region}" if region else "lies in another region"
        hint = f"set AWS_REGION={region}" if region else "set AWS_REGION to the bucket's region"
        return StorageError(f"{told}: bucket {bucket} {lies}; nothing was changed", hint=hint)
    if code == "RequestTimeTooSkewed":
        return StorageError(
            f"{told}: the clocks of this machine and the storage differ{_skew(answer, clock)}; nothing was changed",
            hint="set this machine's clock, best by NTP, then repeat",
        )
    if code in _EXPIRED:
        return NotAllowed(f"{told}: the credentials have expired ({code}); nothing was changed", hint=_RENEW)
    if code in _UNKNOWN:
        return NotAllowed(f"{told}: the credentials are refused ({code}); nothing was changed", hint=_CHECK_KEYS)
    if code in _FULL or answer.status == 507:
        return StorageFull(f"{told}: the storage is full ({code}); nothing was changed", hint=_FREE)
    if answer.status in (401, 403):
        return NotAllowed(
            f"{told}: the credentials do not allow it in bucket {bucket} ({code}); nothing was changed",
            hint="ask the bucket's owner for the right, or " + _CHECK_KEYS,
        )
    if answer.status == 404:
        return ObjectNotFound(f"there is no object {name}")
    if answer.status == 501 or code == "NotImplemented":
        return StorageError(f"{told}: this storage does not know how ({code}); nothing was changed")
    return StorageError(f"{told}: the storage refuses ({code}); nothing was changed")


def _region(answer: Answer) -> str:
    found = _REGION.search(answer.body) or _REGION_TEXT.search(answer.body)
    told = answer.headers.get("x-amz-bucket-region", found[1].decode() if found else "")
    return told if re.fullmatch(r"[a-z0-9-]{1,64}", told) else ""


def _skew(answer: Answer, clock: Clock) -> str:
    seconds = _seconds_until(answer.headers.get("date", ""), clock)
    if seconds is None:
        return " too much"
    return f" too much: this machine's is {abs(seconds):.0f} s {'behind' if seconds > 0 else 'ahead'}"


def _seconds_until(date: str, clock: Clock) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() - clock.wall_ns() / 1e9
    except (TypeError, ValueError, OverflowError):
        return None
