"""Ports that are driven by whole steps, as a test drives them."""

from __future__ import annotations

import threading

from afd_connectors.step import Mode, Step
from afd_connectors.stepped import DeviceAttentionPort, Gathered, SteppedFFNPort
from afd_connectors.testing.group import Group, answer_of, within

LAYERS = 3


def stepped(group: Group) -> SteppedFFNPort:
    port = group.build("ffn").open_ffn()
    assert isinstance(port, SteppedFFNPort)
    return port


def begun(group: Group, port: DeviceAttentionPort) -> Step:
    """A step of four rows, whose first layer's are on their way."""
    step = Step(1, Mode.EAGER, (4,))
    port.begin(step)
    port.send(step, 0, group.rows(4))
    return step


def abandoned(group: Group) -> DeviceAttentionPort:
    """A port whose FFN rank was there and is gone, which it knows."""
    group.start_ffn()
    port = group.open_attention()
    assert isinstance(port, DeviceAttentionPort)
    group.stop_ffn()
    assert within(5, port.lost)
    return port


def serve(port: SteppedFFNPort, gathered: Gathered) -> int:
    """Answers a whole step; the rows of its exchanges."""
    rows = 0
    for layer, stage in gathered.exchanges(port.layers):
        work = port.take(gathered, layer, stage)
        if work is not None:
            rows += work.hidden.shape[0]
            port.send(work, answer_of(work.hidden, layer, stage, work.router))
    return rows


def next_step(port: SteppedFFNPort) -> Gathered:
    found = port.next_step(wait_s=5)
    assert found is not None, "no step was announced within 5 s"
    return found


def run_all(group: Group, ports: list[DeviceAttentionPort], steps: list[Step]) -> None:
    """Every rank's exchanges at once, as the FFN rank serves them together."""
    failures: list[BaseException] = []

    def one(port: DeviceAttentionPort, step: Step) -> None:
        try:
            for layer in range(LAYERS):
                group.exchange(port, step, layer)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=one, args=pair) for pair in zip(ports, steps, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not failures
