"""A living attention rank that announced a step and stands still: how long others of that step wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from afd_connectors.errors import ConnectorError, PeerLost
from afd_connectors.shape import Shape
from afd_connectors.step import Mode, Step
from afd_connectors.stepped import DeviceAttentionPort
from afd_connectors.testing.group import Group, answer_of
from afd_connectors.testing.processes import processes_of
from tests.support.fake_nvlink import FakeNvlink
from tests.support.stepped import LAYERS, serve, stepped

TIMEOUT_S, RECOVERY_S = 1.0, 4.0


@contextmanager
def served(group: Group) -> Iterator[None]:
    """An FFN rank that serves whole steps on a thread, as they are gathered."""
    port = stepped(group)

    def drive() -> None:
        try:
            while True:
                gathered = port.next_step(wait_s=0.2)
                if gathered is not None:
                    serve(port, gathered)
        except ConnectorError:  # closed below
            return

    thread = threading.Thread(target=drive)
    thread.start()
    try:
        yield
    finally:
        port.close()
        thread.join(10)


def attempt(group: Group, port: DeviceAttentionPort, seq: int) -> bool:
    """One step as an engine runs it, which joins again first; whether it counts."""
    if port.lost():
        port.rejoin()
    step, rows = Step(seq, Mode.EAGER, (3,)), group.rows(3)
    port.begin(step)
    check, outs = port.witness(), []
    for layer in range(LAYERS):
        outs.append(torch.full_like(rows, 77))
        port.send(step, layer, rows)
        port.recv(step, layer, outs[-1])
    try:
        check()
    except PeerLost:
        return False
    assert all(torch.equal(out, answer_of(rows, layer, 0)) for layer, out in enumerate(outs))
    return True


@pytest.mark.parametrize(
    ("stopped", "bound"),
    [(True, TIMEOUT_S), (False, RECOVERY_S)],
    ids=["stopped until it is silent", "alive for as long as an exchange is retried"],
)
def test_others_of_its_step_are_held_up_for_a_bounded_time(stopped: bool, bound: float) -> None:
    shape = Shape(16, 8, "bfloat16", LAYERS, 2)
    with Group(FakeNvlink, shape, attention=2) as group, processes_of(group) as processes:
        group.limits(timeout_s=TIMEOUT_S, recovery_timeout_s=RECOVERY_S)
        with served(group):
            port, other = group.open_attention(1), processes.attention(0)
            assert isinstance(port, DeviceAttentionPort)
            assert attempt(group, port, 1)
            other.ask("begin", 1, 5)  # and nothing is sent
            if stopped:
                other.stop()
            begun, seq = time.monotonic(), 2
            while not attempt(group, port, seq):
                seq += 1
                assert time.monotonic() - begun < 3 * RECOVERY_S
            spent = time.monotonic() - begun
            assert spent < bound + TIMEOUT_S + 1.5
            for more in range(seq + 1, seq + 20):
                assert attempt(group, port, more)
            if stopped:
                other.resume()
            time.sleep(0.5)  # within which its watch has seen that its connection was ended
            other.ask("begin", 2, 4)
            for layer in range(LAYERS):
                for order in ("send", "recv"):
                    other.ask(order, layer, 0)
