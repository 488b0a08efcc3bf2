"""The FFN server loop: serves, stops, and ends its process when it fails."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest

from afd_connectors.ports import FFNPort, PeerStatus, Work
from afd_connectors.step import Mode, Step
from afd_workers.loop import Exchanges, ServerLoop


class Port(FFNPort):
    """Hands out the works it was given, then stays idle until closed."""

    def __init__(self, works: list[Work]) -> None:
        self.works, self.answers, self.closed = works, [], threading.Event()

    def recv(self, stage: int | None = None, *, wait_s: float) -> Work | None:
        if self.works:
            return self.works.pop(0)
        if self.closed.wait(min(wait_s, 0.05)):
            raise ConnectionError("closed")
        return None

    def send(self, work: Work, out: object) -> None:
        self.answers.append((work.layer, out))

    def peers(self) -> tuple[PeerStatus, ...]:
        return ()

    def close(self) -> None:
        self.closed.set()


def work(layer: int) -> Work:
    return Work(Step(1, Mode.EAGER, (1,)), layer, 0, f"rows {layer}", None, object())  # type: ignore[arg-type]


def test_every_work_is_answered_with_what_was_computed_and_stopping_is_no_failure() -> None:
    port, deaths = Port([work(n) for n in range(3)]), []
    exchanges = Exchanges(port, lambda each: f"{each.hidden} computed")  # type: ignore[arg-type, return-value]
    loop = ServerLoop(exchanges, deaths.append)
    loop.start()
    deadline = time.monotonic() + 5
    while len(port.answers) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert loop.stop(5)
    assert port.answers == [(n, f"rows {n} computed") for n in range(3)]
    assert deaths == []


def test_a_failing_computation_is_reported_once_with_its_error() -> None:
    def fail(_work: Work) -> object:
        raise RuntimeError("no such expert")

    port, deaths, died = Port([work(0), work(1)]), [], threading.Event()
    loop = ServerLoop(Exchanges(port, fail), lambda error: (deaths.append(error), died.set()))  # type: ignore[arg-type, func-returns-value]
    loop.start()
    assert died.wait(5)
    assert loop.stop(5)
    assert [str(error) for error in deaths] == ["no such expert"]


def test_an_idle_port_shows_life_and_a_source_that_ends_ends_the_loop_alone() -> None:
    port, beats, deaths = Port([work(0)]), [], []
    exchanges = Exchanges(port, lambda _work: None, lambda: beats.append(len(port.answers)))  # type: ignore[arg-type, return-value]

    class Ending:
        def serve_one(self) -> bool:
            return exchanges.serve_one() and not beats

        def close(self) -> None:
            exchanges.close()

    loop = ServerLoop(Ending(), deaths.append)
    loop.start()
    deadline = time.monotonic() + 5
    while not beats and time.monotonic() < deadline:
        time.sleep(0.01)
    assert loop.stop(5)
    assert (beats, deaths) == ([1], [])


@pytest.mark.parametrize(("ignored", "code"), [(False, -signal.SIGTERM), (True, 70)])
def test_a_dead_loop_ends_its_process_even_one_that_ignores_the_signal(ignored: bool, code: int) -> None:
    script = f"""
import signal, time
from afd_workers import ending
ending.GRACE_S = 0.3
if {ignored}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
ending.end_process(RuntimeError("x"))
time.sleep(30)
"""
    started = time.monotonic()
    assert subprocess.run([sys.executable, "-c", script], timeout=20, check=False).returncode == code
    assert time.monotonic() - started < 15
