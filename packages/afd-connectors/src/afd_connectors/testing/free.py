"""Free TCP ports on this host's loopback interface."""

from __future__ import annotations

import socket


def free_port(count: int = 1) -> int:
    """The first of `count` neighbouring local ports that nobody listens on."""
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first = int(probe.getsockname()[1])
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first
    raise RuntimeError(f"expected {count} free neighbouring ports on 127.0.0.1, found none in 100 tries.")
