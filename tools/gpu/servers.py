"""`vllm serve` processes of a run, native or either role, ended with all that they started whatever ends the run."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from afd_workers.launch.guard import guarded
from afd_workers.launch.plan import API_SERVER
from tools.gpu.children import DEVICES, ENV, NAMED, ROOT, TAIL, Failed, plugin_path
from tools.gpu.setups import free_port

LOOK_S = 0.5
#: What is run to serve, and what both of them are followed by.
VLLM = ("vllm.entrypoints.cli.main", "serve")
AFD = ("afd_workers.cli", "serve")
#: The same for vLLM's CPU build, which lacks what its own command looks for.
CPU = (API_SERVER, "--model")
GONE_S = 30.0
KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
FREE_MIB = 2048


class Server:
    """One server and every process under it, which end with the thread that started it.

    devices: what CUDA_VISIBLE_DEVICES says, or None for a CPU build.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], log: Path, devices: str | None, path: str, module: Sequence[str]
    ) -> None:
        self.name, self._log, port = name, log, free_port()
        self._answered = False
        self.url = f"http://127.0.0.1:{port}"
        env = {**os.environ, **ENV, "PYTHONPATH": path}
        if devices is None:
            env |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        else:
            env |= {"CUDA_VISIBLE_DEVICES": devices, "VLLM_USE_V2_MODEL_RUNNER": "1"}
            env |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        command = [sys.executable, "-m", *module, *arguments]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        with log.open("w") as stream:
            stream.write(f"{' '.join(command)}\n")
            stream.flush()
            self._process = subprocess.Popen(
                guarded(command),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=ROOT,
                start_new_session=True,
            )

    def up(self) -> bool:
        """Whether /health has answered; Failed when the server ended."""
        if self._process.poll() is not None:
            raise self._failed(f"ended with code {self._process.returncode}")
        if self._answered:
            return True
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
            self._answered = bool(answer.status == 200)
        return self._answered

    def ready(self, until: float) -> None:
        """Waits for /health; Failed when the server ends, or at time.monotonic() `until`."""
        while not self.up():
            if time.monotonic() > until:
                raise self._failed("was not ready in time")
            time.sleep(LOOK_S)

    @property
    def ended(self) -> bool:
        """Whether its first process has."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Ends its process group at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(20)

    def log_text(self) -> str:
        """All that it logged."""
        return self._log.read_text(errors="replace")

    def lines_with(self, words: str) -> list[str]:
        """Of its log, those that hold `words`."""
        return [line for line in self.log_text().splitlines() if words in line]

    def kv_tokens(self) -> list[int]:
        """The size of each KV cache that it told of."""
        return [int(found.replace(",", "")) for found in KV_TOKENS.findall(self.log_text())]

    def log_tail(self) -> str:
        """The last lines of its log."""
        return "\n".join(f"  {self.name}| {line[:300]}" for line in self.log_text().splitlines()[-TAIL:])

    def _failed(self, what: str) -> Failed:
        return Failed(f"{self.name} {what}; the end of {self._log}:\n{self.log_tail()}")


class Servers:
    """The servers of one part of a run; leaving it ends them and waits until the devices are free again."""

    def __init__(self, logs: Path) -> None:
        self._logs, self._path = logs, plugin_path(logs)
        self._before = used_mib()
        self._all: list[Server] = []

    def start(self, name: str, arguments: Sequence[str], devices: str | None, module: Sequence[str] = VLLM) -> Server:
        """Starts `vllm serve`, or `afd serve`, with the model's folder and options; devices: see Server."""
        server = Server(name, arguments, self._logs / f"{name}.log", devices, self._path, module)
        self._all.append(server)
        return server

    def ready(self, until: float) -> None:
        """Waits for all of them."""
        for server in self._all:
            server.ready(until)

    def __enter__(self) -> Servers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._all:
            server.kill()
        until = time.monotonic() + GONE_S
        while self._holding() and time.monotonic() < until:
            time.sleep(LOOK_S)

    def _holding(self) -> bool:
        """Whether a device still lacks memory that it had before; a later server would count it as taken."""
        return any(now > before + FREE_MIB for now, before in zip(used_mib(), self._before, strict=True))


def place(devices: Sequence[int]) -> str:
    """What CUDA_VISIBLE_DEVICES says for these places of AFD_GPU_DEVICES, or of the host where that names fewer."""
    return ",".join(DEVICES[each] if each < len(DEVICES) else str(each) for each in devices)


def places() -> int:
    """How many there are: those that AFD_GPU_DEVICES names, where one may come twice, or the host's devices."""
    return len(DEVICES) if NAMED in os.environ else len(used_mib())


def used_mib() -> list[int]:
    """Memory in use per device; none without a driver."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    told = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    return [int(line) for line in told.split()]
