"""HTTP/1.1 for object storage: open connections, shared by threads, dropped after fork.

One exchange is one request and one answer, with no repetition and no redirect. Bodies are sent from where they lie and
received where they are wanted. Nothing here is ever logged.
"""

import os
import select
import ssl
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import NamedTuple

from cairn.core.clock import Clock
from cairn.core.limits import (
    REMOTE_BYTES_PER_SECOND_MIN,
    REMOTE_CONNECT_SECONDS,
    REMOTE_ERROR_BYTES_MAX,
    REMOTE_IDLE_CONNECTIONS_MAX,
    REMOTE_REQUEST_SECONDS,
)

# Parts of less than this, all together, go in one call of the system.
_JOINED_BYTES_MAX = 256 << 10


class Unsent(Exception):
    """No connection could be made: the request had no effect."""


class Lost(Exception):
    """The request may have been sent, and no whole answer came."""


class Excess(Exception):
    """The answer is longer than what was asked for."""


class Place(NamedTuple):
    """A server."""

    secure: bool
    host: str
    port: int | None

    @property
    def authority(self) -> str:
        """Host, and port where it is not the scheme's own, as in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port in (None, 443 if self.secure else 80) else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent. The headers may hold a signature, hence no repr."""

    method: str
    target: str
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    parts: Sequence[memoryview] = field(default=(), repr=False)
    # Where a successful answer's body goes, at most as much as this holds; without, it comes as bytes.
    into: memoryview | None = field(default=None, repr=False)
    # Bytes of an answer that are taken; None for what was asked for, of whatever size.
    body_bytes_max: int | None = REMOTE_ERROR_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; header names in lower case."""

    status: int
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(default=b"", repr=False)
    # Bytes of the body, wherever they are.
    length: int = 0


class Connections:
    """Connections to one server. Any number of threads may use them at once, each exchange its own."""

    def __init__(self, place: Place, clock: Clock, ca_bundle: str | None = None) -> None:
        self._place = place
        self._clock = clock
        self._tls = ssl.create_default_context(cafile=ca_bundle) if place.secure else None
        self._idle: list[HTTPConnection] = []
        weakref.finalize(self, _close_all, self._idle)
        self._process = os.getpid()

    def exchange(self, request: Request) -> Answer:
        """Send a request and receive its answer.

        Raises:
            Unsent, Lost: there is no answer.
            Excess: there is one that was not asked for.
        """
        connection = self._connection()
        size = sum(part.nbytes for part in request.parts)
        size += request.into.nbytes if request.into is not None else 0
        seconds = REMOTE_REQUEST_SECONDS + size / REMOTE_BYTES_PER_SECOND_MIN
        reusable = False
        try:
            connection.sock.settimeout(seconds)
            response = self._answered(connection, request)
            answer = self._received(response, request, self._clock.monotonic() + seconds)
            reusable = not response.will_close
        except (OSError, HTTPException, ValueError) as error:
            # The error is not kept as the cause: some show what was sent.
            raise Lost(f"{_reason(error)}") from None
        finally:
            if reusable and len(self._idle) < REMOTE_IDLE_CONNECTIONS_MAX:
                self._idle.append(connection)
            else:
                connection.close()
        return answer

    def _answered(self, connection: HTTPConnection, request: Request) -> HTTPResponse:
        parts = request.parts
        if parts and sum(part.nbytes for part in parts) <= _JOINED_BYTES_MAX:
            parts = [memoryview(b"".join(parts))]
        try:
            connection.request(request.method, request.target, iter(parts) if parts else None, request.headers)
        except (BrokenPipeError, ConnectionResetError):
            # A server may refuse before it has received all; its reason may still be there to read.
            with suppress(OSError, HTTPException):
                return connection.getresponse()
            raise
        connection.sock.settimeout(REMOTE_REQUEST_SECONDS)
        return connection.getresponse()

    def _received(self, response: HTTPResponse, request: Request, deadline: float) -> Answer:
        headers = {name.lower(): value for name, value in response.getheaders()}
        good = 200 <= response.status < 300
        limit = request.body_bytes_max if good else REMOTE_ERROR_BYTES_MAX
        if response.length is None:
            # In pieces, or until the connection ends: listings and errors come so.
            body = response.read((limit or REMOTE_ERROR_BYTES_MAX) + 1)
            if len(body) > (limit or REMOTE_ERROR_BYTES_MAX):
                raise Excess("the answer is longer than what was asked for")
            return Answer(response.status, headers, body, len(body))
        length, into = response.length, request.into if good else None
        if into is not None:
            limit = into.nbytes
        if limit is not None and length > limit:
            raise Excess("the answer is longer than what was asked for")
        target = into[:length] if into is not None else memoryview(bytearray(length))
        self._fill(response, target, deadline)
        return Answer(response.status, headers, b"" if into is not None else bytes(target), length)

    def _fill(self, response: HTTPResponse, view: memoryview, deadline: float) -> None:
        """Receive exactly what `view` holds, each piece straight from the socket to its place."""
        while view.nbytes:
            count = response.fp.readinto1(view)
            if not count:
                raise ValueError("the answer was cut short")
            view = view[count:]
            if self._clock.monotonic() > deadline:
                raise TimeoutError("the answer takes too long")
        # Says that the answer is complete; the connection stays open.
        response.close()

    def _connection(self) -> HTTPConnection:
        if os.getpid() != self._process:
            # The parent goes on to use its connections; closing the copies here does not end them.
            self._process = os.getpid()
            _close_all(self._idle)
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._opened()
            # Whatever can be read before a request was sent is the server's farewell.
            farewell = select.poll()
            farewell.register(connection.sock, select.POLLIN)
            if not farewell.poll(0):
                return connection
            connection.close()

    def _opened(self) -> HTTPConnection:
        host, port = self._place.host, self._place.port
        connection = (
            HTTPSConnection(host, port, timeout=REMOTE_CONNECT_SECONDS, context=self._tls)
            if self._tls is not None
            else HTTPConnection(host, port, timeout=REMOTE_CONNECT_SECONDS)
        )
        try:
            connection.connect()
        except (OSError, ValueError) as error:
            connection.close()
            raise Unsent(f"{self._place.authority}: {_reason(error)}") from None
        return connection


def _close_all(connections: list[HTTPConnection]) -> None:
    while connections:
        connections.pop().close()


def _reason(error: Exception) -> str:
    """What the system says, which never holds a header."""
    if isinstance(error, OSError):
        return error.strerror or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
    return str(error) if type(error) is ValueError else type(error).__name__
