"""All servers of one launch: started together, waited for, watched, stopped together."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NoReturn

from afd_workers.launch.plan import Server
from afd_workers.launch.process import ServerProcess

_STOP_S = 8.0
_POLL_S = 0.5
_PROGRESS_S = 10.0


class LaunchError(RuntimeError):
    """A server ended or did not become ready; the message names it and says why."""


class Fleet:
    """A context manager: whatever happens inside, every started server is stopped at its end.

    write gets log lines and progress, one line a call.
    """

    def __init__(self, servers: Sequence[Server], write: Callable[[str], None]) -> None:
        self._servers, self._write = tuple(servers), write
        self._running: list[ServerProcess] = []

    def __enter__(self) -> Fleet:
        try:
            for server in self._servers:
                self._running.append(ServerProcess(server, self._write))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pids(self) -> dict[str, int]:
        """Server name -> process id of its API server."""
        return {process.server.name: process.pid for process in self._running}

    def wait_ready(self, timeout_s: float) -> None:
        """Returns when every server is healthy; LaunchError when one ends before, or after ``timeout_s``."""
        started = reported = time.monotonic()
        waiting = list(self._running)
        while waiting:
            self._check_alive()
            waiting = [process for process in waiting if not process.is_ready()]
            now = time.monotonic()
            names = ", ".join(process.server.name for process in waiting)
            if waiting and now - started > timeout_s:
                raise LaunchError(
                    f"Expected every server to be ready within {timeout_s:g} s, found {names} still starting (last log "
                    f"line: {waiting[0].last_line()!r}): read the log above, or raise --start-timeout."
                )
            if waiting and now - reported > _PROGRESS_S:
                reported = now
                self._write(f"[afd] waiting for {names} ({now - started:.0f} s of {timeout_s:g} s)")
            if waiting:
                time.sleep(_POLL_S)
        for process in self._running:
            self._write(f"[afd] {process.server.name} is at {process.server.health.removesuffix('/health')}")
        self._write(f"[afd] all servers are ready after {time.monotonic() - started:.0f} s")

    def watch(self) -> NoReturn:
        """Never returns: LaunchError as soon as a server ends, or whatever a signal handler raises."""
        while True:
            self._check_alive()
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Ends all servers within ten seconds, politely first; may be called twice."""
        for process in self._running:
            process.terminate()
        deadline = time.monotonic() + _STOP_S
        for process in self._running:
            process.end(deadline - time.monotonic())
        self._running = []

    def _check_alive(self) -> None:
        for process in self._running:
            code = process.exit_code()
            if code is not None:
                raise LaunchError(
                    f"Expected {process.server.name} to keep running, found it {_ended(code)}: {process.cause()}"
                )


def _ended(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    return f"was ended by {name}" + (" (often a lack of memory)" if name == "SIGKILL" else "")
