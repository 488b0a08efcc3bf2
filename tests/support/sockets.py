"""What a server's sockets do, seen from outside without disturbing them."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from pathlib import Path

_LISTEN = "0A"


def listens(pid: int, port: int) -> bool:
    """Whether something listens on a TCP port in the network namespace of a process."""
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == _LISTEN and int(local.rpartition(":")[2], 16) == port:
                return True
    return False


def probe(url: str) -> tuple[int, dict[str, object]]:
    """HTTP status and JSON object of a GET; (0, {}) when nobody answers within five seconds."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status), _object(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, _object(error.read())
    except (OSError, http.client.HTTPException):
        return 0, {}


def _object(body: bytes) -> dict[str, object]:
    found: dict[str, object] = json.loads(body) if body else {}
    return found
