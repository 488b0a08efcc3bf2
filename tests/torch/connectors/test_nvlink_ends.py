"""How nvlink ends: nothing that nobody computed is sent, no memory is taken from under a device, none stays."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import time
from collections.abc import Callable

import pytest
import torch

from afd_connectors.errors import ConnectorError, DeadlineExceeded, HandshakeRefused, PeerLost
from afd_connectors.ports import Connector
from afd_connectors.shape import Shape
from afd_connectors.step import Mode, Step
from afd_connectors.testing.group import Group, within
from afd_connectors.transports import handover
from afd_connectors.transports.enqueued.carrier import Transfer
from afd_connectors.transports.nvlink.failed import CallFailed
from afd_connectors.transports.nvlink.link import ENDED
from afd_connectors.transports.nvlink.sizes import UNITS_AT, UNITS_BYTES
from afd_connectors.transports.nvlink.window import Window
from tests.support.fake_nccl import FakeNccl, FakeP2p
from tests.support.fake_nvlink import TIMED_OUT, CountedDriver, FakeDriver, FakeMoves, FakeNvlink
from tests.support.stepped import LAYERS, next_step, serve, stepped


@pytest.fixture
def deploy() -> Callable[..., Group]:
    def make() -> Group:
        return Group(FakeNvlink, Shape(16, 8, "bfloat16", LAYERS, 2))

    return make


def pair() -> tuple[FakeDriver, Window, Window]:
    """Two ranks' windows to each other."""
    driver = FakeDriver()
    one, other = (Window(driver, Shape(16, 8, "bfloat16", LAYERS, 2)) for _ in range(2))
    descriptors = [one.make(), other.make()]
    for window, descriptor in zip((one, other), reversed(descriptors), strict=True):
        window.attach(descriptor)
        os.close(descriptor)
    return driver, one, other


@pytest.mark.parametrize("stage", [0, 1])
def test_after_a_wait_that_was_ended_nothing_reaches_the_peer(stage: int) -> None:
    """A graph goes on after it: what it would send is nobody's answer, and the peer may still read the last one."""
    driver, ffn, attention = pair()
    moves = FakeMoves(driver, 5.0)
    rows = torch.arange(32, dtype=torch.bfloat16)
    moves.put([attention.outgoing(rows.data_ptr(), 4, 0, 0)], 0)
    got = torch.zeros_like(rows)
    moves.wait([ffn.incoming(got.data_ptr(), 4, 0, 0)], 0)
    moves.put([ffn.outgoing(got.data_ptr(), 4, 0, 0)], 0)
    ffn.end()
    garbage = torch.full_like(rows, 7)
    moves.wait([ffn.incoming(garbage.data_ptr(), 4, 1, stage)], 0)  # nobody sent
    moves.put([ffn.outgoing(garbage.data_ptr(), 4, 1, stage)], 0)
    moves.put([ffn.outgoing(garbage.data_ptr(), 4, 1, 1 - stage)], 0)
    assert ffn.error()[0] == ENDED
    moves.wait([attention.incoming(got.data_ptr(), 4, 0, 0)], 0)
    assert torch.equal(got, rows)
    hasty = FakeMoves(driver, 0.05)
    for late in (stage, 1 - stage):
        hasty.wait([attention.incoming(got.data_ptr(), 4, 1, late)], 0)
    assert attention.error()[0] == TIMED_OUT
    assert torch.equal(got, rows)
    for window in (ffn, attention):
        window.restart()
        assert window.error() == (0, 0, 0)
    moves.put([ffn.outgoing(rows.data_ptr(), 4, 2, stage)], 0)
    moves.wait([attention.incoming(got.data_ptr(), 4, 2, stage)], 0)
    assert attention.error() == (0, 0, 0)
    for window in (ffn, attention):
        window.free()


def test_whoever_comes_finds_every_unit_empty_and_no_word() -> None:
    """Also after a message that nobody took out."""
    _, ffn, attention = pair()
    for stage in (0, 1):
        flags = ffn.incoming(64, 4, 0, stage).flags
        ctypes.memset(flags, 7, UNITS_AT + UNITS_BYTES)
    ffn.restart()
    for window in (ffn, attention):
        for stage in (0, 1):
            flags = window.incoming(64, 4, 0, stage).flags
            assert not any(ctypes.string_at(flags, UNITS_AT))
            assert ctypes.string_at(flags + UNITS_AT, UNITS_BYTES).count(0xFF) == UNITS_BYTES
        window.free()


def test_rows_of_a_lost_peer_hold_up_nobody_elses_answer() -> None:
    """One batch of two peers: the one is lost and gets nothing, the other gets what it is owed."""
    driver, to_one, one = pair()
    _, to_other, other = pair()
    moves = FakeMoves(driver, 0.1)
    rows, batch = torch.arange(32, dtype=torch.bfloat16), torch.zeros(64, dtype=torch.bfloat16)
    halves = [batch.data_ptr(), batch.data_ptr() + 64]
    moves.put([other.outgoing(rows.data_ptr(), 4, 0, 0)], 0)
    moves.wait([to_one.incoming(halves[0], 4, 0, 0), to_other.incoming(halves[1], 4, 0, 0)], 0)
    moves.put([to_one.outgoing(halves[0], 4, 0, 0), to_other.outgoing(halves[1], 4, 0, 0)], 0)
    got = torch.zeros_like(rows)
    moves.wait([other.incoming(got.data_ptr(), 4, 0, 0), one.incoming(got.data_ptr(), 4, 0, 0)], 0)
    assert torch.equal(got, rows)
    assert (to_one.error()[0], to_other.error()[0]) == (TIMED_OUT, 0)
    assert (one.error()[0], other.error()[0]) == (TIMED_OUT, 0)
    for window in (to_one, one, to_other, other):
        window.free()


def test_an_ffn_rank_stopped_in_a_step_answers_nothing_more(deploy) -> None:
    with deploy() as group:
        group.limits(timeout_s=5.0)
        ffn = stepped(group)
        port = group.open_attention()
        step = Step(1, Mode.EAGER, (4,))
        port.begin(step)
        next_step(ffn)
        (peer,) = ffn._guests
        ffn._rooms[0].fill_(7)

        def replay() -> None:  # as a graph, which asks nobody before it goes on
            transfer = Transfer(peer.link, ffn._rooms[0].data_ptr(), 4, 0, 0, 16)
            with ffn._carrier._driver.working():
                ffn._carrier.recv([transfer])
                ffn._carrier.send([transfer])

        graph = threading.Thread(target=replay)
        graph.start()
        time.sleep(0.1)
        answer = port._lines[0].link.window.incoming(0, 4, 0, 0)
        check = port.witness()
        ffn.close()
        graph.join(5)
        assert ctypes.c_uint64.from_address(answer.flags).value == 0
        assert not any(ctypes.string_at(answer.start, 64))
        assert within(5, port.lost)
        with pytest.raises(PeerLost, match="so what this step computed is void"):
            check()


def test_memory_stays_while_another_thread_may_still_replay_a_graph(
    deploy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    freed: list[int] = []
    monkeypatch.setattr(FakeDriver, "release", lambda _self, address, _size: freed.append(address))
    with deploy() as group:
        ffn = stepped(group)
        port = group.open_attention()
        port.begin(Step(1, Mode.EAGER, (4,)))
        go, gathered = threading.Event(), threading.Event()

        def drive() -> None:
            next_step(ffn)
            gathered.set()
            go.wait(10)  # a graph of the step is replayed here

        serving = threading.Thread(target=drive)
        serving.start()
        assert gathered.wait(5)
        monkeypatch.setattr("afd_connectors.transports.enqueued.ffn.AWAY_S", 0.2)
        ffn.close()
        assert freed == []
        assert "may still be used and stays until this process ends" in caplog.text
        go.set()
        serving.join(5)
        again = stepped(group)
        again.close()


def test_memory_goes_once_the_serving_thread_has_ended_its_step(deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[int] = []
    monkeypatch.setattr(FakeDriver, "release", lambda _self, address, _size: freed.append(address))
    with deploy() as group:
        ffn = stepped(group)
        port = group.open_attention()
        port.begin(Step(1, Mode.EAGER, (4,)))
        gathered = threading.Event()

        def drive() -> None:
            step = next_step(ffn)
            gathered.set()
            serve(ffn, step)  # nobody sends: its waits end when the port is closed

        serving = threading.Thread(target=drive)
        serving.start()
        assert gathered.wait(5)
        ffn.close()
        assert len(freed) == 2
        serving.join(5)


def test_a_join_that_fails_halfway_leaves_nothing(deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    files: list[int] = []

    class Failing(CountedDriver):
        def adopt(self, descriptor: int) -> int:
            raise CallFailed("cuMemImportFromShareableHandle", "CUDA_ERROR_NOT_SUPPORTED")

    monkeypatch.setattr(FakeNvlink, "driver", Failing)
    with deploy() as group:
        group.start_ffn()
        for _ in range(3):
            with pytest.raises(HandshakeRefused):
                group.open_attention()
            assert within(5, lambda: not Failing.held)
            files.append(len(os.listdir("/proc/self/fd")))
        assert within(5, lambda: len(os.listdir("/proc/self/fd")) <= files[0])


def test_a_window_that_cannot_be_made_whole_is_not_made_at_all() -> None:
    class Poor(CountedDriver):
        def own(self, size: int) -> int:
            raise ConnectorError("cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY.")

    with pytest.raises(ConnectorError, match="OUT_OF_MEMORY"):
        Window(Poor(), Shape(16, 8, "bfloat16", LAYERS, 2))
    assert Poor.held == []


@pytest.mark.parametrize("kinds", [(FakeNvlink, FakeP2p), (FakeP2p, FakeNvlink)])
def test_roles_with_different_connectors_are_told_so_at_once(
    kinds: tuple[type[Connector], type[Connector]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where "auto" finds something else on one host for each, because their containers show different devices."""
    monkeypatch.setattr(FakeP2p, "library", FakeNccl())
    with Group(kinds[0], Shape(16, 8, "bfloat16", LAYERS, 2)) as group:
        ffn = stepped(group)
        group.connector = kinds[1]
        with pytest.raises(HandshakeRefused, match=f"uses connector '{kinds[1].name}', its FFN rank another one.*name"):
            group.open_attention()
        ffn.close()


def test_a_tunnel_from_another_host_is_refused_at_once(deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    """There every address is a loopback address, and only the door is not found."""

    def nobody(*_: object) -> int:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    monkeypatch.setattr(handover, "_fetch", nobody)
    with deploy() as group:
        ffn = stepped(group)
        with pytest.raises(HandshakeRefused, match=r"needs both ranks on one host .* use connector 'nccl-p2p' other"):
            group.open_attention()
        ffn.close()


@pytest.mark.parametrize("call", ["create", "reserve"])
def test_why_an_ffn_rank_has_no_memory_is_told_to_the_attention_rank(
    deploy, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(FakeDriver, call)

    def fail(driver: FakeDriver, size: int) -> object:
        if threading.current_thread().name == "afd-greeting":
            raise ConnectorError("cuMemCreate failed: CUDA_ERROR_NOT_SUPPORTED.")
        return real(driver, size)

    with deploy() as group:
        ffn = stepped(group)
        monkeypatch.setattr(FakeDriver, call, fail)
        group.limits(join_timeout_s=0.5)
        with pytest.raises(DeadlineExceeded, match="no memory for this one: 'cuMemCreate failed: CUDA_ERROR_NOT_SUPP"):
            group.open_attention()
        ffn.close()
