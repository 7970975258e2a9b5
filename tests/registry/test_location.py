"""Which backend a location means, and how S3's server is found."""

import os
from pathlib import Path

import pytest

from cairn.core.errors import StorageError, UsageError
from cairn.registry.location import backend_at, backend_for_new, is_remote, make_place
from cairn.store.backends.filesystem import FilesystemBackend
from cairn.store.backends.posix import PosixBackend
from cairn.store.backends.s3 import S3Backend


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")


def test_folders_and_file_urls_are_folders(tmp_path: Path) -> None:
    for location in (str(tmp_path), tmp_path.as_uri()):
        assert isinstance(backend_at(location), PosixBackend) and not is_remote(location)
        make_place(location)
    assert backend_for_new(str(tmp_path))[1] == tmp_path / ".cairn"
    assert backend_for_new(tmp_path.as_uri())[1] == tmp_path


@pytest.mark.parametrize(
    ("url", "variables", "place", "path"),
    [
        ("s3://bucket/a/b", {}, "https bucket.s3.us-east-1.amazonaws.com", "/a/b/x"),
        ("s3://bucket/", {"AWS_REGION": "eu-west-3"}, "https bucket.s3.eu-west-3.amazonaws.com", "/x"),
        ("s3://a.bucket", {}, "https s3.us-east-1.amazonaws.com", "/a.bucket/x"),
        ("s3://bucket/a", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000/"}, "http 127.0.0.1:9000", "/bucket/a/x"),
        ("s3://bucket/a", {"AWS_ENDPOINT_URL": "https://[::1]:443"}, "https [::1]", "/bucket/a/x"),
        ("s3://bucket", {"AWS_ENDPOINT_URL": "http://h", "AWS_ALLOW_HTTP": "true"}, "http h", "/bucket/x"),
        (
            "s3://bucket/~a=b+c",
            {"AWS_ENDPOINT_URL": "https://h:1", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "1"},
            "https bucket.h:1",
            "/~a%3Db%2Bc/x",
        ),
    ],
)
def test_where_s3_is(
    url: str, variables: dict[str, str], place: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    backend, folder = backend_for_new(url)
    assert isinstance(backend, S3Backend) and folder is None and is_remote(url)
    assert backend.url == url.rstrip("/")
    assert f"{'https' if backend._place.secure else 'http'} {backend._place.authority}" == place
    assert backend._path("x") == path


def test_certificates_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no.pem").write_text("no certificate")
    for path in (tmp_path / "absent", tmp_path / "no.pem", tmp_path):
        monkeypatch.setenv("AWS_CA_BUNDLE", str(path))
        with pytest.raises(UsageError, match="AWS_CA_BUNDLE"):
            backend_at("s3://bucket/a")


def test_other_urls_are_fsspecs() -> None:
    backend = backend_at("memory://place/a")
    assert isinstance(backend, FilesystemBackend) and backend.url == "memory://place/a"
    assert not backend.capabilities.durable
    backend.create("x", [b"1"])
    assert backend_at("memory://place").read("a/x") == b"1"
    backend.delete("x")


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("gs://bucket/a", "cairn-store[gcs]"),
        ("az://container/a", "cairn-store[azure]"),
        ("abfss://container@account.dfs.core.windows.net/a", "cairn-store[azure]"),
    ],
)
def test_a_missing_package_is_named(url: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        backend_at(url)
    assert hint in caught.value.hint
    with pytest.raises(StorageError, match="package pyarrow is missing"):
        backend_at("hdfs://host:9000/a").size("x")
