"""``afd serve`` as a user runs it: one command, the OpenAI API, Ctrl-C, nothing left."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from afd_workers.demo.client import Client
from afd_workers.launch.free import free_ports
from tests.support.checkpoints import Checkpoint
from tests.support.servers import OPTIONS, base, environment, forked, plain, status, wait, wait_ready

pytestmark = pytest.mark.timeout(600)  # starting servers takes a minute or two
TOKENS = 32
PROMPTS = [f"{'The split model answers. ' * n}{n}" for n in range(1, 9)]
SESSION = "AFD_TEST_SESSION"


@dataclass(slots=True)
class Served:
    """A running ``afd serve`` beside a native server."""

    process: subprocess.Popen[str]
    port: int
    session: str
    log: list[str] = field(default_factory=list)
    native: Client = field(default_factory=lambda: Client("", "toy"))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def split(self) -> Client:
        return Client(self.url, "toy")

    def address(self, name: str) -> str:
        """The URL that the command printed for a server."""
        return next(match[1] for line in self.log if (match := re.search(rf"\[afd\] {name} is at (\S+)", line)))


def processes(session: str) -> list[int]:
    """Living processes that carry the session's mark in their environment."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                with open(f"/proc/{entry.name}/environ", "rb") as stream:
                    if f"{SESSION}={session}".encode() in stream.read():
                        found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.fixture(scope="module")
def served(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model = checkpoint("qwen3-moe")
    port, session = free_ports(1)[0], f"{os.getpid()}-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "afd_workers.cli", "serve", str(model), "--topology", "1A1F", "--port", str(port)]
    env = {**environment(), SESSION: session}
    process = subprocess.Popen([*command, *OPTIONS], env=env, stderr=subprocess.PIPE, text=True)
    serving = Served(process, port, session)
    assert process.stderr is not None
    stderr = process.stderr
    threading.Thread(target=lambda: serving.log.extend(line.rstrip() for line in stderr), daemon=True).start()
    native = plain(model)
    try:
        with forked(native, tmp_path_factory.mktemp("native")) as server:
            wait(
                "afd serve",
                lambda: any("[afd] 1A1F serves" in line for line in serving.log) or process.poll() is not None,
            )
            assert process.poll() is None, "\n".join(serving.log[-30:])
            wait_ready(native, server)
            serving.native = Client(base(native), "toy")
            yield serving
    finally:
        process.kill()
        process.wait(10)


def test_single_requests_give_the_native_tokens(served: Served) -> None:
    for prompt in PROMPTS:
        assert served.split.complete(prompt, TOKENS).tokens == served.native.complete(prompt, TOKENS).tokens


def test_concurrent_requests_give_the_native_tokens(served: Served) -> None:
    expected = [served.native.complete(prompt, TOKENS).tokens for prompt in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        found = list(pool.map(lambda prompt: served.split.complete(prompt, TOKENS).tokens, PROMPTS))
    assert found == expected


def test_an_aborted_request_leaves_the_others_alone(served: Served) -> None:
    body = {"model": "toy", "prompt": "x", "max_tokens": 480, "ignore_eos": True, "stream": True, "temperature": 0}
    request = urllib.request.Request(
        f"{served.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    expected = served.native.complete(PROMPTS[0], TOKENS).tokens
    with urllib.request.urlopen(request, timeout=30) as stream:
        assert stream.readline().startswith(b"data: ")
        assert served.split.complete(PROMPTS[0], TOKENS).tokens == expected
        assert running(served) == 1.0
    wait("the end of the aborted request", lambda: running(served) == 0.0, 15)
    assert served.split.complete(PROMPTS[0], TOKENS).tokens == expected


def running(served: Served) -> float:
    """Requests that the attention server runs, from its metrics."""
    with urllib.request.urlopen(f"{served.url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("vllm:num_requests_running{"))


def test_the_ffn_server_has_health_and_metrics_but_no_generation_route(served: Served) -> None:
    ffn = served.address("ffn 0")
    assert status(f"{ffn}/health") == 200
    assert status(f"{ffn}/metrics") == 200
    assert status(f"{ffn}/v1/completions", {"model": "toy", "prompt": "x"}) == 404


def test_every_line_names_its_server(served: Served) -> None:
    assert all(re.match(r"\[(afd|attention|ffn 0)\]", line) for line in served.log)


def test_ctrl_c_stops_everything_within_ten_seconds(served: Served) -> None:
    ports = [served.port, int(served.address("ffn 0").rsplit(":", 1)[1])]
    assert len(processes(served.session)) >= 5
    started_at = time.monotonic()
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(15) == 0
    assert time.monotonic() - started_at < 10
    assert "[afd] stopped all servers on SIGINT" in served.log[-1]
    wait("the end of every process", lambda: not processes(served.session), 2)
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
