"""Signature version 4, by which S3 knows who asks, and where the credentials for it come from.

Source: "Authenticating Requests (AWS Signature Version 4)", Amazon S3 API Reference.
"""

import hashlib
import hmac
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import quote

from cairn.core.clock import Clock
from cairn.core.errors import NotAllowed
from cairn.core.settings import S3Settings

_UNSIGNED = "UNSIGNED-PAYLOAD"
_ASK = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; for profiles and roles, install 'cairn-store[s3]'"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who asks."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


class Source(Protocol):
    """Where credentials come from; asked before each request, since some expire and are renewed."""

    def __call__(self) -> Credentials:
        """Those that are valid now.

        Raises:
            NotAllowed: there are none.
        """
        ...


def source_of(settings: S3Settings) -> Source:
    """Credentials of the environment, else whatever AWS's own library finds: profiles, roles, single sign-on."""
    if settings.access_key and settings.secret_key:
        given = Credentials(settings.access_key, settings.secret_key, settings.session_token)
        return lambda: given
    return _found()


def _found() -> Source:
    try:
        import botocore.exceptions
        import botocore.session
    except ImportError:
        raise NotAllowed("no credentials for S3 are set", hint=_ASK) from None
    # It logs whole answers, and with them the credentials that a role is given.
    logging.getLogger("botocore").setLevel(logging.INFO)
    chain: Any = None

    def credentials() -> Credentials:
        nonlocal chain
        try:
            chain = chain or botocore.session.Session().get_credentials()
            held = chain and chain.get_frozen_credentials()
        except (botocore.exceptions.BotoCoreError, OSError) as error:
            # Its text may hold what a command or a server answered.
            raise NotAllowed(f"no credentials for S3 could be got: {type(error).__name__}", hint=_ASK) from None
        if not held:
            raise NotAllowed("no credentials for S3 are set", hint=_ASK)
        return Credentials(held.access_key, held.secret_key, held.token)

    return credentials


class Signer:
    """Signs requests to S3 in one region."""

    def __init__(self, source: Source, region: str, clock: Clock) -> None:
        self._source = source
        self.region = region
        self._clock = clock

    def headers(
        self,
        method: str,
        host: str,
        path: str,
        query: Sequence[tuple[str, str]],
        headers: dict[str, str],
        parts: Sequence[memoryview] | None,
    ) -> dict[str, str]:
        """The headers to send: those given, the signature, and what it needs.

        Args:
            path: percent-encoded.
            headers: signed too, names in lower case.
            parts: the body, whose hash is signed; None where the connection protects it.
        """
        held = self._source()
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._clock.wall_ns() // 1_000_000_000))
        body_hash = _UNSIGNED if parts is None else _sha256(parts)
        headers = {**headers, "host": host, "x-amz-content-sha256": body_hash, "x-amz-date": moment}
        if held.token:
            headers["x-amz-security-token"] = held.token
        names = sorted(headers)
        request = "\n".join(
            [
                method, path, encoded(query), *(f"{name}:{headers[name].strip()}" for name in names), "",
                ";".join(names), body_hash,
            ]
        )  # fmt: skip
        scope = f"{moment[:8]}/{self.region}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        signature = hmac.digest(_key(held.secret_key, moment[:8], self.region), text.encode(), "sha256").hex()
        who = f"Credential={held.access_key}/{scope}"
        headers["authorization"] = f"AWS4-HMAC-SHA256 {who},SignedHeaders={';'.join(names)},Signature={signature}"
        return headers


def encoded(query: Sequence[tuple[str, str]]) -> str:
    """A query as it is signed and sent: sorted, percent-encoded."""
    return "&".join(sorted(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query))


def _sha256(parts: Sequence[memoryview]) -> str:
    hash_ = hashlib.sha256()
    for part in parts:
        hash_.update(part)
    return hash_.hexdigest()


# A day's key for each set of credentials in use.
@lru_cache(maxsize=16)
def _key(secret_key: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret_key}".encode()
    for word in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, word.encode(), "sha256")
    return key
