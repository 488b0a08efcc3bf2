"""When an FFN server listens for attention ranks, which is before it answers requests over HTTP."""

from __future__ import annotations

import time
from pathlib import Path

from tools.gpu.children import Failed
from tools.gpu.servers import Server

LOOK_S = 0.02


def since(server: Server, port: int, limit_s: float) -> float:
    """The time.monotonic() at which something listens on `port`; Failed when `server` ends, or nothing does."""
    until = time.monotonic() + limit_s
    while not _listens(port):
        if time.monotonic() > until or server.ended:
            raise Failed(f"{server.name} did not listen on port {port}:\n{server.log_tail()}")
        time.sleep(LOOK_S)
    return time.monotonic()


def gone(port: int, limit_s: float) -> None:
    """Waits until nothing listens on `port` any more, which is a moment after a kill; Failed when something still does.

    Else the killed server's last moment would pass for the next one's first.
    """
    until = time.monotonic() + limit_s
    while _listens(port):
        if time.monotonic() > until:
            raise Failed(f"something still listens on port {port} {limit_s:g} s after its server was killed")
        time.sleep(LOOK_S)


def _listens(port: int) -> bool:
    """Whether any process of this host does."""
    for file in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in file.read_text().splitlines()[1:] if file.exists() else ():
            fields = line.split()
            if fields[1].endswith(f":{port:04X}") and fields[3] == "0A":
                return True
    return False
