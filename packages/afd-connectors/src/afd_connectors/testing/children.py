"""What a rank does in a process of its own: one call of its port per order of the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from afd_connectors.ports import AttentionPort, Connector, FFNPort, Work
from afd_connectors.step import Mode, Step
from afd_connectors.stepped import DeviceAttentionPort
from afd_connectors.testing.device import own_stream, receive, settle
from afd_connectors.testing.group import answer_of

DONE = ""
Actions = Mapping[str, Callable[..., None]]


@dataclass(frozen=True, slots=True)
class AttentionChild:
    """The orders of an attention rank; each answer is checked here."""

    connector: Connector
    port: AttentionPort
    sent: dict[tuple[int, int], Tensor]
    steps: list[Step]
    device: str

    def begin(self, seq: int, *tokens: int) -> None:
        """Begins a step."""
        self.steps[:] = [Step(seq, Mode.EAGER, tokens)]
        self.port.begin(self.steps[0])

    def send(self, layer: int, stage: int) -> None:
        """Sends rows."""
        shape = self.connector.shape
        whole = torch.randint(-8, 8, (self.steps[0].tokens[stage], shape.hidden))
        rows = whole.to(self.device, getattr(torch, shape.dtype))
        self.sent[layer, stage] = rows
        self.port.send(self.steps[0], layer, rows, stage=stage)

    def recv(self, layer: int, stage: int) -> None:
        """Receives the answer to them."""
        rows = self.sent.pop((layer, stage))
        out = torch.empty_like(rows)
        receive(self.port, self.steps[0], layer, out, stage)
        assert torch.equal(out, answer_of(rows, layer, stage)), f"layer {layer} stage {stage} came back wrong"

    def repeat(self, *tokens: int) -> None:
        """A whole step after the one that was begun, void as that is: the port joins again for it."""
        assert isinstance(self.port, DeviceAttentionPort)
        self.sent.clear()
        self.port.rejoin()
        self.begin(self.steps[0].seq + 1, *tokens)
        for layer in range(self.connector.shape.layers):
            for stage in range(len(tokens)):
                self.send(layer, stage)
                self.recv(layer, stage)


@dataclass(frozen=True, slots=True)
class FFNChild:
    """The orders of an FFN rank; between them it does nothing, like a process that computes."""

    port: FFNPort
    works: list[Work]
    device: str

    def take(self) -> None:
        """Waits for an exchange and keeps it."""
        work = self.port.recv(wait_s=10.0)
        assert work is not None, "no exchange came within 10 s"
        settle(self.device)
        self.works.append(work)

    def answer(self) -> None:
        """Answers the oldest that was kept."""
        work = self.works.pop(0)
        self.port.send(work, answer_of(work.hidden, work.layer, work.stage))
        settle(self.device)

    def expect_nothing(self) -> None:
        """Fails when an exchange comes."""
        work = self.port.recv(wait_s=0.3)
        assert work is None, f"expected no exchange, found layer {work.layer} stage {work.stage}"

    def serve(self, until: Callable[[], bool]) -> None:
        """Answers what comes until the test is over."""
        while not until():
            work = self.port.recv(wait_s=0.05)
            if work is not None:
                self.port.send(work, answer_of(work.hidden, work.layer, work.stage))


def run(connector: Connector, device: str, orders: Connection) -> None:
    """The process: opens the rank's port, then obeys until the other end of `orders` is closed."""
    torch.set_num_threads(1)
    with own_stream(device):
        _obey(connector, device, orders)


def _obey(connector: Connector, device: str, orders: Connection) -> None:
    actions: Actions
    if connector.layout.role == "ffn":
        ffn = FFNChild(connector.open_ffn(), [], device)
        actions = {
            "take": ffn.take,
            "answer": ffn.answer,
            "expect_nothing": ffn.expect_nothing,
            "serve": lambda: ffn.serve(orders.poll),
        }
    else:
        attention = AttentionChild(connector, connector.open_attention(), {}, [], device)
        actions = {
            "begin": attention.begin,
            "send": attention.send,
            "recv": attention.recv,
            "repeat": attention.repeat,
        }
    with suppress(EOFError, ConnectionError):  # the test is over
        orders.send(DONE)
        while True:
            name, *arguments = orders.recv()
            orders.send(_outcome(actions[name], arguments))


def _outcome(action: Callable[..., None], arguments: Sequence[object]) -> str:
    try:
        action(*arguments)
    except Exception as error:  # noqa: BLE001 - told to the test, which fails with it
        return f"{type(error).__name__}: {error}"
    return DONE
