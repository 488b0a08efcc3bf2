"""One server process: its own session, its log lines prefixed, its end certain."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import ssl
import subprocess
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable

from afd_workers.launch.guard import adopt_orphans, guarded
from afd_workers.launch.plan import Server

_KEPT_LINES = 400
_PROBE_S = 2.0
_DRAIN_S = 2.0
_GRACE_S = 1.5
_SHOWN = 1000
_ERROR = re.compile(r"(?:^|\s)((?:[\w.]+\.)?[A-Z]\w*(?:Error|Refused|Lost|Exceeded|Exception): .+)$")
_GENERIC = ("Engine core initialization failed", "EngineCore encountered an issue", "EngineDeadError")


class ServerProcess:
    """A started server. ``write`` gets each of its log lines with the server's name in front."""

    def __init__(self, server: Server, write: Callable[[str], None]) -> None:
        adopt_orphans()
        self.server = server
        self._write = write
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._process = subprocess.Popen(
            guarded(server.command),
            env=dict(server.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._pump = threading.Thread(target=self._copy_log, name=f"log {server.name}", daemon=True)
        self._pump.start()

    @property
    def pid(self) -> int:
        """Process id of the API server, also that of its process group."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def is_ready(self) -> bool:
        """Whether /health answers 200 now; waits at most two seconds."""
        # The server is on this host: no proxy lies between, and its certificate is for other names.
        tls = urllib.request.HTTPSHandler(context=ssl._create_unverified_context())
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), tls)
        try:
            with opener.open(self.server.health, timeout=_PROBE_S) as answer:
                return bool(answer.status == 200)
        except (OSError, http.client.HTTPException):
            return False

    def last_line(self) -> str:
        """The newest log line, empty before the first."""
        return self._lines[-1] if self._lines else ""

    def cause(self) -> str:
        """The most telling line of the log: the last specific error, else the last line that is no routine."""
        lines = [line[:_SHOWN] for line in tuple(self._lines) if line.strip()]
        errors = [match[1] for line in lines if (match := _ERROR.search(line))]
        specific = [error for error in errors if not any(generic in error for generic in _GENERIC)]
        unusual = [line for line in lines if " INFO" not in line]
        return (specific or errors or unusual or ["its log says nothing about it"])[-1]

    def terminate(self) -> None:
        """Asks it to stop; returns at once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def end(self, timeout_s: float) -> None:
        """Waits ``timeout_s`` for the end, then ends whatever is left of its session, politely first."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(timeout_s, 0.0))
        # Multiprocessing's trackers free shared memory once their users are gone, if they get the time.
        for number, grace_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _DRAIN_S)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
            if self._is_empty(grace_s):
                break
        self._pump.join(_DRAIN_S)
        if self._process.stdout is not None and not self._pump.is_alive():
            self._process.stdout.close()

    def _is_empty(self, timeout_s: float) -> bool:
        """Whether its session has no process left within ``timeout_s``; collects those that ended on the way."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._process.poll()
            with contextlib.suppress(ChildProcessError):
                while self._process.returncode is not None and os.waitpid(-self.pid, os.WNOHANG) != (0, 0):
                    continue
            try:
                os.killpg(self.pid, 0)
            except ProcessLookupError:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)

    def _copy_log(self) -> None:
        if self._process.stdout is None:
            return
        for line in self._process.stdout:
            text = line.rstrip("\n")
            self._lines.append(text)
            # Where lines can no longer be written, reading goes on: a full pipe would stop the server.
            with contextlib.suppress(OSError, ValueError):
                self._write(f"[{self.server.name}] {text}")
