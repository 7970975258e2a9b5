"""S3 and time: slow, silent and hasty servers, and large objects."""

import calendar
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from cairn.core.errors import AnswerLost, NotAllowed, Unavailable
from cairn.store.backends import connections, patience
from tests.support.doubles import HeldClock
from tests.support.fake_s3 import FakeS3, Fault, Reply, fake_s3, refusal


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


def test_H11_an_upload_may_last_longer_than_any_signature_is_good_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """No address is presigned: each request, and each repetition, is signed when it is sent; what is done is kept."""
    good_seconds, clock = 2, HeldClock()
    with fake_s3() as fake:
        serve, ages = fake._serve, list[float]()

        def strictly(method: str, target: str, headers: dict[str, str], body: bytes) -> Reply:
            signed = calendar.timegm(time.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ"))
            ages.append(clock.wall_ns() / 1e9 - signed)
            if ages[-1] > good_seconds:
                return refusal(403, "RequestExpired")
            clock.sleep(1.0)
            return serve(method, target, headers, body)

        monkeypatch.setattr(fake, "_serve", strictly)
        busy = refusal(503, "SlowDown", Retry_After="5")
        fake.script = [Fault("PUT", call, reply=busy) for call in (7, 8, 15)]
        s3, began = fake.backend(clock), clock.wall_ns()
        for number in range(20):
            s3.create(f"part-{number:02}", [bytes(1000)])
        assert clock.wall_ns() - began > 20 * good_seconds * 10**9 / 2
        assert len(fake.objects) == 20 and fake.asked("PUT") == 23 and max(ages) < good_seconds
