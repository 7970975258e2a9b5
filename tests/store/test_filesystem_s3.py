"""fsspec's way to real object storage: the suite on s3fs, though `s3://` itself goes another way."""

import copy

import pytest

from cairn.store.backends.contract import Backend
from cairn.store.backends.filesystem import FilesystemBackend
from tests.contracts.backend import BackendContract
from tests.support.s3 import BUCKET, Server, fresh_prefix, s3_server

__all__ = ["s3_server"]
pytestmark = [pytest.mark.s3, pytest.mark.slow]


@pytest.fixture(scope="module")
def bucket(s3_server: Server) -> FilesystemBackend:
    """The whole bucket; to make a file system takes a second."""
    options = {
        "key": s3_server.access_key,
        "secret": s3_server.secret_key,
        "endpoint_url": s3_server.variables["AWS_ENDPOINT_URL"],
        "config_kwargs": {"retries": {"total_max_attempts": 1}},
    }
    whole = FilesystemBackend(f"s3://{BUCKET}", "s3", BUCKET, options)
    assert whole._files
    return whole


class TestS3fs(BackendContract):
    races = 5

    @pytest.fixture
    def backend(self, bucket: FilesystemBackend) -> Backend:
        below = copy.copy(bucket)
        below._root = f"{BUCKET}/{fresh_prefix()}"
        return below
