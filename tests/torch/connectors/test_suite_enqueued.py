"""The suite notices transports that claim "graph" and "reconnect" and do not keep what the contract says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from afd_connectors.errors import ConnectorError, DeadlineExceeded, PeerLost
from afd_connectors.ports import Work
from afd_connectors.step import Mode
from afd_connectors.stepped import SteppedFFNPort
from afd_connectors.testing import ConnectorSuite
from afd_connectors.testing.group import Group
from afd_connectors.transports.enqueued.attention import EnqueuedAttentionPort as Port
from afd_connectors.transports.enqueued.ffn import EnqueuedFFNPort
from afd_connectors.transports.nvlink.carrier import NvlinkCarrier
from tests.support.doubled import doubled
from tests.support.fake_nvlink import FakeNvlink

Fault = Callable[[pytest.MonkeyPatch], None]
REPEATED = ("test_ffn_ends_under_enqueued_steps", ("between steps",))


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    with doubled(FakeNvlink):
        yield


def silent(patch: pytest.MonkeyPatch) -> None:
    """A void step passes for a good one."""
    patch.setattr(Port, "witness", lambda _port: lambda: None)


def nameless(patch: pytest.MonkeyPatch) -> None:
    """It says that something was lost, and not what."""

    def witness(port: Port) -> Callable[[], None]:
        def check() -> None:
            if port.lost():
                raise ConnectorError("something was lost.")

        return check

    patch.setattr(Port, "witness", witness)


def otherwise(patch: pytest.MonkeyPatch) -> None:
    """Its error is one that nobody who repeats void steps looks for."""
    native = Port.witness

    def witness(port: Port) -> Callable[[], None]:
        check = native(port)

        def judged() -> None:
            try:
                check()
            except PeerLost as error:
                raise DeadlineExceeded(str(error)) from error

        return judged

    patch.setattr(Port, "witness", witness)


def forgetful(patch: pytest.MonkeyPatch) -> None:
    """It does not remember what it has answered."""
    native = EnqueuedFFNPort.send

    def send(port: EnqueuedFFNPort, work: Work, out: torch.Tensor) -> None:
        kept = dict(port._out)
        native(port, work, out)
        port._out.update(kept)

    patch.setattr(EnqueuedFFNPort, "send", send)


def stranded(patch: pytest.MonkeyPatch) -> None:
    """It does not join the successor."""
    patch.setattr(Port, "rejoin", lambda _port: None)


def officious(patch: pytest.MonkeyPatch) -> None:
    """It runs the void step again by itself."""
    native = Port.rejoin

    def rejoin(port: Port) -> None:
        native(port)
        assert port._step is not None
        again = replace(port._step, seq=port._step.seq + 1, mode=Mode.EAGER)
        rows = [Group(FakeNvlink, port._shape).rows(count) for count in again.tokens]
        port.begin(again)
        for layer in range(port._shape.layers):
            for stage, sent in enumerate(rows):
                port.send(again, layer, sent, stage=stage)
                port.recv(again, layer, sent, stage=stage)

    patch.setattr(Port, "rejoin", rejoin)


def garbling(patch: pytest.MonkeyPatch) -> None:
    """What arrives over a second connection is not what was sent."""
    native = Port.rejoin

    def rejoin(port: Port) -> None:
        native(port)
        patch.setattr(NvlinkCarrier, "recv", lambda _carrier, _transfers: ())

    patch.setattr(Port, "rejoin", rejoin)


def hasty(patch: pytest.MonkeyPatch) -> None:
    """An FFN rank hands out stages as they are asked for."""
    native = SteppedFFNPort.recv

    def recv(port: SteppedFFNPort, stage: int | None = None, *, wait_s: float) -> Work | None:
        return native(port, wait_s=wait_s)

    patch.setattr(SteppedFFNPort, "recv", recv)


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        (silent, ("test_a_silent_rank_voids_the_step", ())),
        (silent, ("test_ffn_ends_under_enqueued_steps", ("in mid-step",))),
        (nameless, ("test_a_silent_rank_voids_the_step", ())),
        (otherwise, ("test_a_silent_rank_voids_the_step", ())),
        (otherwise, ("test_ffn_ends_under_enqueued_steps", ("in mid-step",))),
        (forgetful, ("test_only_works_of_the_port_are_answered", ())),
        (stranded, REPEATED),
        (stranded, ("test_graphs_after_a_loss", ())),
        (officious, REPEATED),
        (garbling, REPEATED),
        (garbling, ("test_graphs_after_a_loss", ())),
        (hasty, ("test_works_come_in_the_order_of_the_step", ())),
    ],
    ids=lambda value: value.__name__ if callable(value) else value[0],
)
def test_what_does_not_keep_the_contract_fails(
    fault: Fault, test: tuple[str, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Suite(ConnectorSuite):
        name = "nvlink"

    name, arguments = test
    fault(monkeypatch)
    with pytest.raises((AssertionError, ConnectorError, pytest.fail.Exception)):
        getattr(Suite(), name)(*arguments)
