"""Modules run as processes that need not import vLLM: forks of one process that has done so, started on first use."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.support.warm import Job

#: One process, one thread: equal grouping of requests on both sides and no orphans.
ENV = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
_IMPORT_S = 240.0
_LOOK_S = 0.05
_GRACE_S = 5.0


class _Warm:
    """The process that forks; it ends with this one."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.warm"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **ENV}, text=True, start_new_session=True,
        )  # fmt: skip
        self._started: queue.Queue[int] = queue.Queue()
        self.codes: dict[int, int] = {}
        threading.Thread(target=self._read, name="warm", daemon=True).start()

    def start(self, job: Job) -> int:
        """The process id of a new fork."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(job)) + "\n")
        self._process.stdin.flush()
        deadline = time.monotonic() + _IMPORT_S
        while True:
            with contextlib.suppress(queue.Empty):
                return self._started.get(timeout=1.0)
            assert self._process.poll() is None, f"importing vLLM ended with exit status {self._process.poll()}"
            assert time.monotonic() < deadline, f"importing vLLM took more than {_IMPORT_S:g} s"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "started" in said:
                self.codes.pop(said["started"], None)  # of an earlier process with this number
                self._started.put(said["started"])
            else:
                self.codes[said["ended"]] = said["code"]

    def end(self) -> None:
        """Its forks get SIGTERM."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_GRACE_S)


@functools.cache
def warm() -> _Warm:
    """The one of this process; importing begins with the first call."""
    made = _Warm()
    atexit.register(made.end)
    return made


class Fork:
    """``python -m module *arguments`` in a session of its own; ``env`` is all of its environment.

    log: the file that both of its outputs are added to. namespace: the network namespace that it is in.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], env: Mapping[str, str], log: Path, namespace: str | None = None
    ) -> None:
        self.log = log
        self.pid = warm().start(Job(module, list(arguments), dict(env), str(log), namespace))

    def poll(self) -> int | None:
        """The exit status, negative after a signal; None while it runs."""
        return warm().codes.get(self.pid)

    def wait(self, timeout_s: float) -> int | None:
        """As `poll`, but it may take ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        return self.poll()

    def lines(self) -> list[str]:
        """What it wrote so far, and whoever had its log before."""
        return self.log.read_text(errors="replace").splitlines() if self.log.exists() else []

    def session(self) -> list[int]:
        """The living processes of its session."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == self.pid and state != "Z":
                    found.append(int(entry.name))
        return found

    def signal(self, number: int) -> None:
        """To every process of its session."""
        for pid in self.session():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def end(self) -> None:
        """Politely at first; afterwards nothing of its session is left."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            self.wait(_GRACE_S)
        self.signal(signal.SIGKILL)
        self.wait(_GRACE_S)
