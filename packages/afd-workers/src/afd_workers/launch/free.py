"""Free TCP ports on this host's loopback interface."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

_TRIES = 200
_LOWEST = 10000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> tuple[int, ...]:
    """``count`` consecutive ports that were free a moment ago; OSError when there are none.

    Below those that the system gives to connections, if it says so: a server binds its port half a minute later.
    """
    highest = _given_from() - count
    for _ in range(_TRIES):
        with contextlib.ExitStack() as held:
            first = _bind(held, random.randint(_LOWEST, highest) if highest > _LOWEST else 0)
            rest = [] if first is None else [_bind(held, first + offset) for offset in range(1, count)]
            if first is not None and None not in rest:
                return tuple(range(first, first + count))
    raise OSError(f"Expected {count} consecutive free ports on 127.0.0.1, found none: stop other servers.")


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen on ``port`` of ``host`` now."""
    with contextlib.ExitStack() as held:
        return _bind(held, port, host) is not None


def _given_from() -> int:
    """The first port that the system gives to a connection that asks for none; 0 where it does not say."""
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _bind(held: contextlib.ExitStack, port: int, host: str = "127.0.0.1") -> int | None:
    server = held.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((host, port))
    except (OSError, OverflowError, TypeError, ValueError):  # the last two for what is no host name at all
        return None
    bound: int = server.getsockname()[1]
    return bound
