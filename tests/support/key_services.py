"""Stand-ins for key services, on this machine: they keep a key, bind what they seal to its context, and count calls."""

import base64
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

TOKEN = "token-of-the-stand-in"


class StandIn:
    """What one server keeps: a key, the calls that it got, and how it is to refuse."""

    def __init__(self) -> None:
        self.key, self.calls, self.refusal = AESGCM(os.urandom(32)), list[str](), 0
        self.url = ""

    def seal(self, plaintext: bytes, context: bytes) -> bytes:
        nonce = os.urandom(12)
        return nonce + self.key.encrypt(nonce, plaintext, context)

    def open(self, sealed: bytes, context: bytes) -> bytes | None:
        try:
            return self.key.decrypt(sealed[:12], sealed[12:], context)
        except (InvalidTag, ValueError):
            return None


class _Handler(BaseHTTPRequestHandler):
    service: StandIn

    def do_POST(self) -> None:  # the name that http.server calls
        fields = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = self.answer(fields)
        if self.service.refusal:
            status, answer = self.service.refusal, {"__type": "AccessDeniedException", "errors": ["no"]}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer(self, fields: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        raise NotImplementedError

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on standard error."""


class Kms(_Handler):
    """The two calls of AWS KMS, by its JSON protocol."""

    def answer(self, fields: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        call = self.headers["X-Amz-Target"].removeprefix("TrentService.")
        self.service.calls.append(call)
        context = json.dumps(fields.get("EncryptionContext"), sort_keys=True).encode()
        if call == "Encrypt":
            sealed = self.service.seal(base64.b64decode(fields["Plaintext"]), context)
            return 200, {"CiphertextBlob": base64.b64encode(sealed).decode(), "KeyId": fields["KeyId"]}
        plain = self.service.open(base64.b64decode(fields["CiphertextBlob"]), context)
        if plain is None:
            return 400, {"__type": "InvalidCiphertextException"}
        return 200, {"Plaintext": base64.b64encode(plain).decode(), "KeyId": fields["KeyId"]}


class Vault(_Handler):
    """The two calls of Vault's transit engine."""

    def answer(self, fields: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.service.calls.append(self.path)
        if self.headers["X-Vault-Token"] != TOKEN:
            return 403, {"errors": ["permission denied"]}
        context = base64.b64decode(fields["associated_data"])
        if self.path == "/v1/transit/encrypt/cairn":
            sealed = self.service.seal(base64.b64decode(fields["plaintext"]), context)
            return 200, {"data": {"ciphertext": "vault:v1:" + base64.b64encode(sealed).decode()}}
        if self.path != "/v1/transit/decrypt/cairn":
            return 404, {"errors": []}
        plain = self.service.open(base64.b64decode(fields["ciphertext"].removeprefix("vault:v1:")), context)
        if plain is None:
            return 400, {"errors": ["cipher: message authentication failed"]}
        return 200, {"data": {"plaintext": base64.b64encode(plain).decode()}}


@contextmanager
def serving(kind: type[_Handler]) -> Iterator[StandIn]:
    """A running stand-in."""
    service = StandIn()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (kind,), {"service": service}))
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
