"""tcp between two real processes, one of which is killed, stopped or restarted while the other exchanges."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from afd_connectors import AttentionPort, Layout, Mode, PeerLost, Settings, Step, resolve
from afd_connectors.testing import free_port

sys.path.insert(0, str(Path(__file__).parent))
from serve_ffn import FACTS, SHAPE

SERVER = Path(__file__).with_name("serve_ffn.py")


class Server:
    """The FFN process of a test, restarted on the same port."""

    def __init__(self, timeout_s: float) -> None:
        self.settings = Settings(port=free_port(), timeout_s=timeout_s, recovery_timeout_s=40, join_timeout_s=40)
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Starts it and returns once it listens."""
        command = [sys.executable, str(SERVER), str(self.settings.port), str(self.settings.timeout_s)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "listening\n"

    def signal(self, number: int) -> None:
        """Sends it a signal; waits for its end after a deadly one."""
        assert self.process is not None
        os.kill(self.process.pid, number)
        if number == signal.SIGKILL:
            self.process.wait(10)

    def stop(self) -> None:
        """Ends it if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()

    def attention(self, settings: Settings | None = None) -> AttentionPort:
        """The other end."""
        layout = Layout("attention", 0, 1, 1)
        return resolve("tcp", "cpu")(layout, SHAPE, FACTS, settings or self.settings).open_attention()


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that is started already."""
    server = Server(timeout_s=2.0)
    server.start()
    yield server
    server.stop()


def layers(port: AttentionPort, step: Step, first: int, last: int, pause_s: float = 0.0) -> None:
    """Checked exchanges of both stages for layers first..last-1."""
    for layer in range(first, last):
        sent = [torch.randint(-8, 8, (rows, 8)).bfloat16() for rows in step.tokens]
        for stage, rows in enumerate(sent):
            port.send(step, layer, rows, stage=stage)
        for stage, rows in enumerate(sent):
            out = torch.empty_like(rows)
            port.recv(step, layer, out, stage=stage)
            assert torch.equal(out, rows * 2 + layer % 64)
        time.sleep(pause_s)


STEP = Step(1, Mode.EAGER, (5, 3))


def test_two_processes(server: Server) -> None:
    port = server.attention()
    port.begin(STEP)
    layers(port, STEP, 0, 200)
    port.close()


def test_killed_and_restarted_in_mid_run(server: Server) -> None:
    """kill -9 at an arbitrary point of a stream of exchanges: all of them finish, with the right values."""
    port = server.attention()
    port.begin(STEP)

    def fail() -> None:
        time.sleep(0.3)
        server.signal(signal.SIGKILL)
        server.start()

    chaos = threading.Thread(target=fail)
    chaos.start()
    layers(port, STEP, 0, 200, pause_s=0.005)
    chaos.join(40)
    step = Step(2, Mode.EAGER, (1, 1))
    port.begin(step)
    layers(port, step, 0, 5)
    port.close()


def test_stopped_and_continued(server: Server) -> None:
    """SIGSTOP for longer than timeout_s is survived; the answer to the abandoned connection is not used."""
    port = server.attention()
    port.begin(STEP)
    layers(port, STEP, 0, 3)
    server.signal(signal.SIGSTOP)
    threading.Timer(4.0, server.signal, (signal.SIGCONT,)).start()
    start = time.monotonic()
    layers(port, STEP, 3, 6)
    assert time.monotonic() - start < 20
    port.close()


def test_never_restarted(server: Server) -> None:
    """After recovery_timeout_s the one sentence says what died, when and where."""
    port = server.attention(replace(server.settings, recovery_timeout_s=1.5))
    port.begin(STEP)
    layers(port, STEP, 0, 3)
    server.signal(signal.SIGKILL)
    rows = torch.zeros(5, 8).bfloat16()
    port.send(STEP, 3, rows)
    start = time.monotonic()
    with pytest.raises(PeerLost, match=r"lost at \d\d:\d\d:\d\d because .*within 1.5 s.*step 1, layer 3, stage 0"):
        port.recv(STEP, 3, rows)
    assert time.monotonic() - start < 6
    port.close()
