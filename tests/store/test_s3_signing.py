"""Signatures against the examples of the Amazon S3 API Reference, and where credentials come from."""

import sys
from calendar import timegm
from pathlib import Path

import pytest

from cairn.core.errors import NotAllowed
from cairn.core.settings import S3Settings
from cairn.store.backends.s3_signing import Credentials, Signer, source_of
from tests.support.doubles import HeldClock

ACCESS, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
HOST = "examplebucket.s3.amazonaws.com"
# Method, path, query, headers, body; then the signature.
_STORE = {"date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"}
_TEXT = b"Welcome to Amazon S3."
_RANGE = {"range": "bytes=0-9"}
_LIST = [("prefix", "J"), ("max-keys", "2")]
EXAMPLES = [
    ("GET", "/test.txt", [], _RANGE, b"", "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
    ("PUT", "/test%24file.text", [], _STORE, _TEXT, "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"),
    ("GET", "/", [("lifecycle", "")], {}, b"", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
    ("GET", "/", _LIST, {}, b"", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
]


@pytest.mark.parametrize(("method", "path", "query", "headers", "body", "signature"), EXAMPLES)
def test_signatures_are_those_of_the_reference(
    method: str, path: str, query: list[tuple[str, str]], headers: dict[str, str], body: bytes, signature: str
) -> None:
    clock = HeldClock(timegm((2013, 5, 24, 0, 0, 0)) * 1_000_000_000)
    signer = Signer(lambda: Credentials(ACCESS, SECRET), "us-east-1", clock)
    # However the body is cut.
    signed = signer.headers(method, HOST, path, query, headers, [memoryview(body)[:5], memoryview(body)[5:]])
    assert signed["authorization"].rpartition("Signature=")[2] == signature
    assert headers.items() <= signed.items()


def test_a_token_is_sent_and_signed() -> None:
    signer = Signer(lambda: Credentials(ACCESS, SECRET, "token"), "us-east-1", HeldClock())
    signed = signer.headers("GET", HOST, "/", [], {}, None)
    assert signed["x-amz-security-token"] == "token" and "x-amz-security-token" in signed["authorization"]
    assert signed["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"


def test_variables_are_read_and_shown_without_their_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"):
        monkeypatch.setenv(f"AWS_{name}", f"{SECRET}-{name}")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "there")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://u:{SECRET}@h")
    settings = S3Settings.from_environment()
    assert (settings.region, settings.allow_http) == ("there", False)
    held = source_of(settings)()
    assert held == Credentials(
        *(f"{SECRET}-{name}" for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"))
    )
    assert SECRET not in repr(settings) + repr(held)
    monkeypatch.setenv("AWS_REGION", "here")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://h")
    settings = S3Settings.from_environment()
    assert (settings.region, settings.endpoint) == ("here", "https://h")


def test_without_credentials_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    with pytest.raises(NotAllowed, match=r"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        source_of(S3Settings())()
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(NotAllowed, match=r"AWS_ACCESS_KEY_ID.*cairn-store\[s3\]"):
        source_of(S3Settings(access_key="only"))
