"""A real S3 server on loopback for the tests that need one: SeaweedFS, or what the script in `S3_SERVER` starts.

It is started on first use, once a test process, in a folder of its own, and ended with it. A test that needs it fails
where it cannot start.
"""

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from cairn.core.clock import SystemClock, SystemEntropy
from cairn.store.backends.connections import Place
from cairn.store.backends.s3 import S3Backend
from cairn.store.backends.s3_signing import Credentials, Signer
from tests.support.ports import free_ports

ACCESS_KEY, SECRET_KEY = "AKIATESTACCESSKEY", "tEsTsEcReT/kEy+0123456789"
REGION = "us-east-1"
BUCKET = "cairn-tests"
_START_SECONDS = 60.0
_MEMORY_DISK, _ROOM_BYTES = Path("/dev/shm"), 8 << 30
# Another process may take a free port before the server does.
_STARTS_MAX = 3
# A server ends with the process that started it, however that ends.
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Server:
    """A running server, and the variables by which any client finds it."""

    port: int
    access_key: str
    secret_key: str

    @property
    def variables(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def enter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make this process a client."""
        for name in list(os.environ):
            if name.startswith("AWS_"):
                monkeypatch.delenv(name)
        for name, value in self.variables.items():
            monkeypatch.setenv(name, value)

    def backend(self, prefix: str = "", bucket: str = BUCKET) -> S3Backend:
        """A backend of its own."""
        held = Credentials(self.access_key, self.secret_key)
        signer = Signer(lambda: held, REGION, SystemClock())
        return S3Backend(bucket, prefix, Place(False, "127.0.0.1", self.port), signer)


def fresh_prefix() -> str:
    """A place in the bucket that no other test uses."""
    return f"t/{SystemEntropy().token(8).hex()}"


@contextmanager
def running() -> Iterator[Server]:
    """A server, with the bucket of the tests in it."""
    script = os.environ.get("S3_SERVER")
    with ExitStack() as stack:
        # In memory where there is room: what a disk does under it is not what these tests are about.
        in_memory = _MEMORY_DISK.is_dir() and shutil.disk_usage(_MEMORY_DISK).free > _ROOM_BYTES
        place = tempfile.TemporaryDirectory(
            prefix="cairn-s3-", dir=_MEMORY_DISK if in_memory else None, ignore_cleanup_errors=True
        )
        folder = Path(stack.enter_context(place))
        started = stack.enter_context(_scripted(Path(script), folder) if script else _seaweed(folder))
        started.backend().make_bucket()
        started.backend().create(f"{fresh_prefix()}/ready", [b"x"])
        yield started


@contextmanager
def _scripted(script: Path, folder: Path) -> Iterator[Server]:
    place = str(folder / "server")
    subprocess.run([script, "start", place], check=True, stdout=subprocess.DEVNULL)
    try:
        said = subprocess.run([script, "env", place], check=True, capture_output=True, text=True).stdout
        words = (word.partition("=") for word in said.replace("export ", "").split())
        told = {name: value.replace("\\", "") for name, _, value in words}
        port = int(told["AWS_ENDPOINT_URL"].rpartition(":")[2])
        yield Server(port, told["AWS_ACCESS_KEY_ID"], told["AWS_SECRET_ACCESS_KEY"])
    finally:
        subprocess.run([script, "purge", place], check=True)


@contextmanager
def _seaweed(folder: Path) -> Iterator[Server]:
    for _ in range(_STARTS_MAX):
        shutil.rmtree(folder / "data", ignore_errors=True)
        (folder / "data").mkdir()
        ports = free_ports(8)
        with (folder / "log").open("wb") as log:
            command, die = _command(folder, ports), partial(ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, signal.SIGKILL)
            server = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=folder, start_new_session=True, preexec_fn=die
            )
        try:
            if _answers(server, ports[-1]):
                yield Server(ports[-1], ACCESS_KEY, SECRET_KEY)
                return
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    pytest.fail(f"the S3 server does not start: {(folder / 'log').read_text(errors='replace')[-2000:]}")


def _command(folder: Path, ports: list[int]) -> list[str]:
    who = {"credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}], "name": "tests", "actions": ["Admin"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [who]}))
    names = ["master", "master.grpc", "volume", "volume.grpc", "filer", "filer.grpc", "s3.grpc", "s3"]
    options = {
        f"{name.partition('.')[0]}.port{'.grpc' if name.endswith('grpc') else ''}": port
        for name, port in zip(names, ports, strict=True)
    }
    return [
        str(Path(sys.executable).with_name("weed")), "-logtostderr", "server", "-dir=data", "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1", "-master.telemetry=false", "-master.volumeSizeLimitMB=256", "-volume.max=64",
        "-volume.minFreeSpacePercent=0", "-filer", f"-filer.localSocket={folder}/filer.sock", "-s3",
        "-s3.config=s3.json", "-s3.iam=false", "-s3.autoCreateBucket=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
        f"-s3.localSocket={folder}/s3.sock", *(f"-{name}={port}" for name, port in options.items()),
    ]  # fmt: skip


def _answers(server: "subprocess.Popen[bytes]", port: int) -> bool:
    """Whether the server comes to store objects before it ends or its time is over."""
    until = time.monotonic() + _START_SECONDS
    probe = Server(port, ACCESS_KEY, SECRET_KEY).backend(bucket="cairn-ready")
    while server.poll() is None and time.monotonic() < until:
        with socket.socket() as client:
            client.settimeout(1)
            if client.connect_ex(("127.0.0.1", port)) == 0:
                probe.make_bucket()
                probe.create("ready", [b"x"])
                return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Server]:
    """A real server, for the whole run."""
    with running() as server:
        yield server
