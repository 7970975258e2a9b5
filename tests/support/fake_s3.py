"""A small S3 on loopback that fails by script. It stores for real, so it passes the suite when its script is empty.

It checks no signature: whether signing is right, only real servers can tell.
"""

import http.server
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import md5
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

from cairn.core.clock import Clock
from cairn.store.backends.connections import Place
from cairn.store.backends.s3 import S3Backend
from cairn.store.backends.s3_signing import Credentials, Signer
from tests.support.doubles import HeldClock, SeededEntropy

BUCKET = "bucket"
SECRETS = ("AKIAFAKEACCESSKEY", "fAkEsEcReTkEy/0123456789", "fAkEsEsSiOnToKeN==")


@dataclass(frozen=True)
class Reply:
    """What the server answers; `length` may lie, and the connection may end with it."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None
    close: bool = False


def refusal(status: int, code: str, **headers: str) -> Reply:
    """An error as S3 words it; `_` in names of headers is a dash."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>said {SECRETS[0]}</Message></Error>"
    return Reply(status, body.encode(), {name.replace("_", "-"): value for name, value in headers.items()})


@dataclass(frozen=True)
class Fault:
    """What happens to a request of that method, the `call`-th from 1, None for each.

    Args:
        effect: whether the request does what it asks for.
        reply: what is answered instead; None drops the connection. A function gets the true answer.
    """

    method: str
    call: int | None = 1
    effect: bool = False
    reply: Reply | Callable[[Reply], Reply] | None = None


@dataclass
class Unfinished:
    """An upload in parts: when it began (ns), sizes of its parts, and how many outlive one abort."""

    began_ns: int
    parts: list[int]
    outlive: int = 0

    def abort(self) -> bool:
        """Whether nothing is left of it."""
        self.parts = self.parts[: self.outlive]
        self.outlive = max(self.outlive - 1, 0)
        return not self.parts


@dataclass
class FakeS3:
    """Objects by key, with their marks, and what was asked for; uploads in parts by key and id."""

    port: int = 0
    objects: dict[str, tuple[bytes, dict[str, str]]] = field(default_factory=dict)
    uploads: dict[tuple[str, str], Unfinished] = field(default_factory=dict)
    script: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    connections: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def asked(self, method: str) -> int:
        """How many requests of that method came."""
        return sum(one[0] == method for one in self.requests)

    def backend(self, clock: Clock | None = None, prefix: str = "p", secure: bool = False, **options: Any) -> S3Backend:
        """A client whose waits are the clock's."""
        clock, held = clock or HeldClock(), Credentials(*SECRETS)
        signer = Signer(lambda: held, "us-east-1", clock)
        place = Place(secure, "127.0.0.1", self.port)
        return S3Backend(BUCKET, prefix, place, signer, clock=clock, entropy=SeededEntropy(), **options)

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Reply | None:
        """What the script makes of a request."""
        with self.lock:
            self.requests.append((method, target, headers))
            count = self.asked(method)
            fault = next((f for f in self.script if f.method == method and f.call in (None, count)), None)
            if fault is None:
                return self._serve(method, target, headers, body)
            true = self._serve(method, target, headers, body) if fault.effect else Reply(500)
            return fault.reply(true) if callable(fault.reply) else fault.reply

    def _serve(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Reply:
        parts = urlsplit(target)
        bucket, _, key = unquote(parts.path)[1:].partition("/")
        if bucket != BUCKET:
            return refusal(404, "NoSuchBucket")
        query = parse_qs(parts.query, keep_blank_values=True)
        if "uploads" in query:
            return self._unfinished(query)
        if "uploadId" in query:
            return self._serve_upload(method, key, query["uploadId"][0])
        if not key:
            return Reply(200) if method == "PUT" else self._listing(query)
        if method == "PUT":
            if key in self.objects:
                return refusal(412, "PreconditionFailed")
            self.objects[key] = body, {name: value for name, value in headers.items() if name.startswith("x-amz-meta-")}
            return Reply(200)
        if method == "DELETE":
            self.objects.pop(key, None)
            return Reply(204)
        if key not in self.objects:
            return refusal(404, "NoSuchKey")
        data, marks = self.objects[key]
        if method == "HEAD":
            return Reply(200, b"", marks, length=len(data))
        if "range" not in headers:
            return Reply(200, data, marks)
        first, _, last = headers["range"].removeprefix("bytes=").partition("-")
        start, end = int(first), min(len(data), int(last) + 1 if last else len(data))
        if start >= len(data):
            return refusal(416, "InvalidRange")
        return Reply(206, data[start:end], {**marks, "content-range": f"bytes {start}-{end - 1}/{len(data)}"})

    def _unfinished(self, query: dict[str, list[str]], page: int = 3) -> Reply:
        prefix = query["prefix"][0]
        after = query.get("key-marker", [""])[0], query.get("upload-id-marker", [""])[0]
        found = sorted(one for one in self.uploads if one[0].startswith(prefix) and one > after)
        text = "".join(
            f"<Upload><Key>{quote(key)}</Key><UploadId>{name}</UploadId>"
            f"<Initiated>{_stamp(self.uploads[key, name].began_ns)}</Initiated></Upload>"
            for key, name in found[:page]
        )
        if len(found) > page:
            key, name = found[page - 1]
            text += f"<NextKeyMarker>{quote(key)}</NextKeyMarker><NextUploadIdMarker>{name}</NextUploadIdMarker>"
        text += f"<IsTruncated>{str(len(found) > page).lower()}</IsTruncated>"
        return Reply(200, f"<ListMultipartUploadsResult>{text}</ListMultipartUploadsResult>".encode())

    def _serve_upload(self, method: str, key: str, name: str) -> Reply:
        upload = self.uploads.get((key, name))
        if upload is None:
            return refusal(404, "NoSuchUpload")
        if method == "DELETE":
            if upload.abort():
                del self.uploads[key, name]
            return Reply(204)
        text = "".join(f"<Part><Size>{size}</Size></Part>" for size in upload.parts)
        return Reply(200, f"<ListPartsResult>{text}</ListPartsResult>".encode())

    def _listing(self, query: dict[str, list[str]], page: int = 1000) -> Reply:
        prefix, delimiter = query["prefix"][0], query.get("delimiter", [""])[0]
        after = query.get("continuation-token", [""])[0]
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        shown = keys[:page]
        folders = {
            key[: key.index(delimiter, len(prefix)) + 1]
            for key in shown
            if delimiter and delimiter in key[len(prefix) :]
        }
        inside = [key for key in shown if not any(key.startswith(folder) for folder in folders)]
        text = "".join(
            f"<Contents><Key>{quote(key)}</Key><Size>{len(self.objects[key][0])}</Size>"
            f"<ETag>{md5(self.objects[key][0]).hexdigest()}</ETag></Contents>"
            for key in inside
        )
        text += "".join(f"<CommonPrefixes><Prefix>{quote(f)}</Prefix></CommonPrefixes>" for f in sorted(folders))
        more = len(keys) > page
        text += f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        text += f"<NextContinuationToken>{escape(shown[-1])}</NextContinuationToken>" if more else ""
        space = "http://s3.amazonaws.com/doc/2006-03-01/"
        return Reply(200, f"<ListBucketResult xmlns='{space}'>{text}</ListBucketResult>".encode())


def _stamp(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


@contextmanager
def fake_s3(tls: ssl.SSLContext | None = None) -> Iterator[FakeS3]:
    """A fake that serves until the block ends."""
    fake = FakeS3()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            with fake.lock:
                fake.connections += 1

        def log_message(self, *_: Any) -> None:
            pass

        def _do(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", "0")))
            reply = fake.answer(self.command, self.path, headers, body)
            if reply is None:
                self.close_connection = True
                return
            self.send_response_only(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(reply.body) if reply.length is None else reply.length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body)
            self.close_connection = self.close_connection or reply.close

        do_GET = do_PUT = do_HEAD = do_DELETE = _do

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = socket.SOMAXCONN

        def handle_error(self, *_: Any) -> None:
            pass

    with Server(("127.0.0.1", 0), Handler) as server:
        fake.port = server.server_address[1]
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
