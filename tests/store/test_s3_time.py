"""S3 and time: slow, silent and hasty servers, and large objects."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from cairn.core.errors import AnswerLost, NotAllowed, Unavailable
from cairn.store.backends import connections, patience
from tests.support.fake_s3 import FakeS3, fake_s3


def test_D19_nothing_is_sent_in_parts() -> None:
    with fake_s3() as fake:
        s3 = fake.backend()
        s3.create("pack", [bytes(72 << 20)])
        assert [(method, target) for method, target, _ in fake.requests] == [("PUT", "/bucket/p/pack")]
        assert s3.size("pack") == 72 << 20 and s3.reclaim("") == 0


@contextmanager
def scripted(serve: Callable[[socket.socket], None]) -> Iterator[FakeS3]:
    """A server that does with each connection what it is told."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            with suppress(OSError):
                while True:
                    with server.accept()[0] as client, suppress(OSError):
                        serve(client)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield FakeS3(server.getsockname()[1])
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_D20_H31_time_grows_with_size_and_silence_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REMOTE_REQUEST_SECONDS", 0.3)

    def slowly(client: socket.socket) -> None:
        client.recv(10_000)
        client.sendall(b"HTTP/1.1 206 Yes\r\nContent-Length: 8388608\r\nContent-Range: bytes 0-8388607/8388608\r\n\r\n")
        for _ in range(8):
            time.sleep(0.1)
            client.sendall(bytes(1 << 20))

    # Longer than a request may be silent, shorter than 8 MiB may take.
    with scripted(slowly) as fake:
        target = bytearray(b"x" * (8 << 20))
        assert fake.backend().read_into("a", 0, target) == len(target) == target.count(0)

    def never(client: socket.socket) -> None:
        while client.recv(1 << 20):
            pass

    monkeypatch.setattr(patience, "REMOTE_PATIENCE_SECONDS", 1.0)
    with scripted(never) as fake:
        with pytest.raises(Unavailable, match="in time"):
            fake.backend().read("a", 0, 10)
        with pytest.raises(AnswerLost):
            fake.backend().create("a", [b"x"])


def test_a_refusal_before_all_is_sent_is_read() -> None:
    def refuse(client: socket.socket) -> None:
        client.recv(1000)
        client.sendall(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        while client.recv(1 << 20):
            pass

    with scripted(refuse) as fake, pytest.raises(NotAllowed):
        fake.backend().create("a", [bytes(8 << 20)])
