"""Ports on loopback for servers and jobs that a test starts."""

import random
import socket
from contextlib import ExitStack, suppress

# Below what Linux gives to outgoing connections (32768 and up): one of these could take a port before it is used.
_PORTS = range(15_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on just now, and that no connection will be given."""
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            port, one = random.SystemRandom().choice(_PORTS), stack.enter_context(socket.socket())
            with suppress(OSError):
                one.bind(("127.0.0.1", port))
                found.append(port)
    return found
