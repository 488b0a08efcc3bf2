"""nvlink joins again: what failed for now is tried again, told once, and leaves no memory behind when a port closes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from afd_connectors.errors import DeadlineExceeded, HandshakeRefused, PeerLost
from afd_connectors.shape import Shape
from afd_connectors.testing.group import Group, within
from afd_connectors.transports.nvlink import meeting
from afd_connectors.transports.nvlink.failed import CallFailed
from afd_connectors.transports.nvlink.link import Link
from afd_connectors.transports.nvlink.window import Window
from tests.support.fake_nvlink import CountedDriver, FakeDriver, FakeNvlink
from tests.support.stepped import LAYERS, abandoned, stepped


@pytest.fixture
def deploy() -> Callable[..., Group]:
    def make(attention: int = 1) -> Group:
        return Group(FakeNvlink, Shape(16, 8, "bfloat16", LAYERS, 2), attention=attention)

    return make


def on_greeting() -> bool:
    """Whether this is the FFN side."""
    return threading.current_thread().name == "afd-greeting"


class Failures:
    """Lets `adopt` fail with a code, on either side, as often as is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.code, self.left, self.ffn, self.seen = "CUDA_ERROR_OUT_OF_MEMORY", 0, False, 0
        real = FakeDriver.adopt

        def adopt(driver: FakeDriver, descriptor: int) -> int:
            if on_greeting() == self.ffn and self.left > 0:
                self.left, self.seen = self.left - 1, self.seen + 1
                raise CallFailed("cuMemImportFromShareableHandle", self.code)
            return real(driver, descriptor)

        monkeypatch.setattr(FakeDriver, "adopt", adopt)


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> Failures:
    return Failures(monkeypatch)


@pytest.mark.parametrize("ffn", [False, True], ids=["attention", "ffn"])
def test_a_mapping_that_fails_for_now_is_tried_again_at_a_rejoin(deploy, failures: Failures, ffn: bool) -> None:
    with deploy() as group:
        group.start_ffn()
        port = group.open_attention()
        group.forward(port, 1, 3)
        group.stop_ffn()
        assert within(5, port.lost)
        failures.left, failures.ffn = 2, ffn
        group.start_ffn()
        port.rejoin()
        assert failures.seen == 2
        group.forward(port, 2, 4)


def test_a_mapping_that_keeps_failing_ends_with_the_deadline_and_its_reason(deploy, failures: Failures) -> None:
    with deploy() as group:
        group.limits(recovery_timeout_s=0.5)
        port = abandoned(group)
        failures.left = 10_000
        group.start_ffn()
        with pytest.raises(PeerLost, match="cuMemImportFromShareableHandle failed: CUDA_ERROR_OUT_OF_MEMORY"):
            port.rejoin()


def test_a_mapping_that_can_never_be_ends_a_rejoin_at_once(deploy, failures: Failures) -> None:
    with deploy() as group:
        port = abandoned(group)
        failures.left, failures.code = 10_000, "CUDA_ERROR_NOT_SUPPORTED"
        group.start_ffn()
        begun = time.monotonic()
        with pytest.raises(HandshakeRefused, match=r"CUDA_ERROR_NOT_SUPPORTED; .*use connector 'nccl-p2p' otherwise"):
            port.rejoin()
        assert time.monotonic() - begun < 3.0


def test_an_offer_that_keeps_failing_is_tried_seldom_and_told_once(
    deploy, failures: Failures, caplog: pytest.LogCaptureFixture
) -> None:
    failures.left, failures.ffn = 10_000, True
    with deploy() as group:
        group.limits(join_timeout_s=4.0)
        ffn = stepped(group)
        with pytest.raises(DeadlineExceeded, match="CUDA_ERROR_OUT_OF_MEMORY"):
            group.open_attention()
        told = [record for record in caplog.records if "cannot serve attention rank 0" in record.message]
        assert len(told) == 1
        assert 3 <= failures.seen <= 8  # after 0.2, 0.4, 0.8 s and then every second
        failures.code = "CUDA_ERROR_UNKNOWN"
        with pytest.raises(DeadlineExceeded):
            group.open_attention()
        told = [record for record in caplog.records if "cannot serve attention rank 0" in record.message]
        assert len(told) == 2
        assert "CUDA_ERROR_UNKNOWN" in told[1].message
        ffn.close()


def test_a_loss_that_another_thread_tells_late_does_not_end_the_new_link(
    deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both links share a window: the end of the first must be told before the second has it, and not after."""
    real, here, rejoined = Link.lose, threading.current_thread(), threading.Event()

    def lose(link: Link, reason: str) -> None:
        if threading.current_thread() is not here and link.landing(0, 1) is None:
            assert rejoined.wait(10)
        real(link, reason)

    with deploy() as group:
        group.start_ffn()
        port = group.open_attention()
        group.forward(port, 1, 3)
        monkeypatch.setattr(Link, "lose", lose)
        group.stop_ffn()
        assert within(5, lambda: port.peers()[0].state == "lost")
        group.start_ffn()
        port.rejoin()
        rejoined.set()
        group.forward(port, 2, 4)
        assert not port.lost()
        port.witness()()


class Counted(CountedDriver):
    """Of all tests below, each of which begins and ends with none."""


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[Counted]:
    monkeypatch.setattr(FakeNvlink, "driver", Counted)
    assert Counted.held == []
    return Counted


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_window_offered_after_the_close_does_not_stay(
    deploy, when: str, counted: type[Counted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A greeting may be under way for longer than a close waits for it."""
    real = meeting.offer
    arrived, closed = threading.Event(), threading.Event()

    def offer(data: object, window: Window) -> None:
        if when == "meanwhile":
            real(data, window)  # type: ignore[arg-type]
        arrived.set()
        assert closed.wait(10)
        if when == "before":
            real(data, window)  # type: ignore[arg-type]

    monkeypatch.setattr(meeting, "offer", offer)
    monkeypatch.setattr("afd_connectors.listener.HELLO_S", 0.2)
    with deploy() as group:
        group.limits(join_timeout_s=2.0)
        ffn = stepped(group)
        with ThreadPoolExecutor(1) as pool:
            joining = pool.submit(group.open_attention)
            assert arrived.wait(5)
            ffn.close()
            closed.set()
            error = joining.exception(10)
            assert error is None or isinstance(error, DeadlineExceeded | HandshakeRefused)
    assert within(5, lambda: not counted.held)


def test_a_window_accepted_after_the_close_does_not_stay(
    deploy, counted: type[Counted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rejoin that another thread's close interrupts: memory goes with whichever of them is last."""
    real = meeting.accept
    meeting_now, closed = threading.Event(), threading.Event()

    def accept(*given: object) -> None:
        if rejoining:
            meeting_now.set()
            assert closed.wait(10)
        real(*given)  # type: ignore[arg-type]

    rejoining: list[bool] = []
    monkeypatch.setattr(meeting, "accept", accept)
    with deploy() as group:
        port = abandoned(group)
        group.start_ffn()
        rejoining.append(True)
        with ThreadPoolExecutor(1) as pool:
            again = pool.submit(port.rejoin)
            assert meeting_now.wait(5)
            port.close()
            closed.set()
            assert "closed" in str(again.exception(10))
    assert within(5, lambda: not counted.held)
