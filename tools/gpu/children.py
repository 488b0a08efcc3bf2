"""Child processes that are asked in JSON lines, with a limit on every answer, and that none outlives its parent."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from afd_workers.launch.guard import guarded

ROOT = Path(__file__).resolve().parent.parent.parent
TAIL = 60
#: Of the host, for the first and the second process; "0,0" tries on one device what is about more than speed.
NAMED = "AFD_GPU_DEVICES"
DEVICES = os.environ.get(NAMED, "0,1").split(",")
ENTRY = "[vllm.general_plugins]\nafd = afd_workers.plugin:register\n"
METADATA = "Metadata-Version: 2.1\nName: afd\nVersion: 0.1.0\n"
ENV = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "PYTHONUNBUFFERED": "1",
}


class Failed(Exception):
    """A child ended, or did not answer in time; says so with the end of its log."""


class Child:
    """One process. Its standard output carries one JSON object per answer, everything else goes to `log`."""

    def __init__(self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.name, self._log = name, log
        self._answers: queue.Queue[str | None] = queue.Queue()
        with log.open("w") as stream:
            self.process = subprocess.Popen(
                guarded(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env={**os.environ, **ENV, **env},
                cwd=ROOT,
                text=True,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, job: Mapping[str, object], limit_s: float) -> dict[str, object]:
        """The answer to one job; Failed when there is none within `limit_s` seconds."""
        self.begin(job)
        return self.answer(limit_s)

    def begin(self, job: Mapping[str, object]) -> None:
        """Hands over one job, whose answer is to be taken with `answer`."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise self._failed(f"takes no jobs any more ({error})") from error

    def answer(self, limit_s: float) -> dict[str, object]:
        """The next answer; the first one of an engine says that it is ready."""
        try:
            line = self._answers.get(timeout=limit_s)
        except queue.Empty:
            raise self._failed(f"did not answer within {limit_s:.0f} s") from None
        if line is None:
            raise self._failed(f"ended with code {self.process.wait(10)}")
        found: dict[str, object] = json.loads(line)
        return found

    def kill(self, *, now: bool = True) -> None:
        """Ends the child; `now`: with SIGKILL."""
        if now:
            self.process.kill()
        else:
            self.process.terminate()
        self.process.wait(20)

    def log_tail(self) -> str:
        """The last lines of its log."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(f"  {self.name}| {line[:300]}" for line in lines[-TAIL:])

    def line_with(self, part: str) -> str | None:
        """The last line of its log that has `part` in it."""
        lines = self._log.read_text(errors="replace").splitlines()
        return next((line for line in reversed(lines) if part in line), None)

    def _failed(self, what: str) -> Failed:
        return Failed(f"{self.name} {what}; the end of {self._log}:\n{self.log_tail()}")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self._answers.put(line)
        self._answers.put(None)


def plugin_path(logs: Path) -> str:
    """PYTHONPATH for a child that shall find these packages as if they were installed; writes what vLLM looks for."""
    plugin = logs / "plugin" / "afd-0.1.0.dist-info"
    plugin.mkdir(parents=True, exist_ok=True)
    (plugin / "METADATA").write_text(METADATA)
    (plugin / "entry_points.txt").write_text(ENTRY)
    folders = [str(plugin.parent), *map(str, sorted(ROOT.glob("packages/*/src"))), str(ROOT)]
    return os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])


class Children:
    """All children of a run, killed at the end of its `with`, whatever ends it."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._all: list[Child] = []
        self._path = plugin_path(logs)

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(value, Failed):
            for child in self._all:
                print(f"--- {child.name}\n{child.log_tail()}", file=sys.stderr)
        for child in self._all:
            child.kill()

    @property
    def all(self) -> tuple[Child, ...]:
        """In the order in which they were started."""
        return tuple(self._all)

    def start(self, name: str, module: str, job: Mapping[str, object], device: int | None) -> Child:
        """`python -m module JOB` that sees one CUDA device, the first or the second of DEVICES."""
        env = {"PYTHONPATH": self._path}
        if device is not None:
            env |= {"CUDA_VISIBLE_DEVICES": DEVICES[device], "VLLM_USE_V2_MODEL_RUNNER": "1"}
        command = [sys.executable, "-m", module, json.dumps(job)]
        child = Child(name, command, self._logs / f"{name}.log", env)
        self._all.append(child)
        return child

    def ready(self, limit_s: float) -> None:
        """Waits until every child that was started has given its first answer."""
        until = time.monotonic() + limit_s
        for child in self._all:
            child.answer(max(1.0, until - time.monotonic()))


def answers() -> int:
    """For a child: a descriptor for answers; what else is printed goes to standard error from now on."""
    sys.stdout.flush()
    mine = os.dup(1)
    os.dup2(2, 1)
    return mine


def say(descriptor: int, answer: Mapping[str, object]) -> None:
    """For a child: one answer."""
    os.write(descriptor, (json.dumps(answer) + "\n").encode())
