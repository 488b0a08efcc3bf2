"""nvlink gives each thing back once, also where CUDA fails halfway: nothing is unmapped or freed a second time."""

from __future__ import annotations

import os
from collections import Counter
from typing import ClassVar

import pytest

from afd_connectors.errors import ConnectorError
from afd_connectors.shape import Shape
from afd_connectors.testing.group import Group, within
from afd_connectors.transports.nvlink.failed import CallFailed
from afd_connectors.transports.nvlink.window import Window
from tests.support.fake_nvlink import FakeDriver, FakeNvlink
from tests.support.stepped import LAYERS

SHAPE = Shape(16, 8, "bfloat16", LAYERS, 2)


class Strict(FakeDriver):
    """Refuses to give back what it does not have, and fails where it is told to.

    failing: by call, how often it fails from now on; there: what each address or memory is.
    """

    failing: ClassVar[Counter[str]] = Counter()
    there: ClassVar[Counter[tuple[str, int]]] = Counter()
    calls: ClassVar[Counter[str]] = Counter()

    def _gone(self, call: str, kind: str, which: int) -> None:
        self.calls[call] += 1
        assert self.there[kind, which] > 0, f"{call} of what is not there"
        if self.failing[call] > 0:
            self.failing[call] -= 1
            raise CallFailed(call, "CUDA_ERROR_UNKNOWN")
        self.there[kind, which] -= 1

    def reserve(self, size: int) -> int:
        address = super().reserve(size)
        self.there["room", address] += 1
        return address

    def release(self, address: int, size: int) -> None:
        assert not self.there["placed", address], "addresses are given back with memory at them"
        self._gone("release", "room", address)
        super().release(address, size)

    def place(self, address: int, size: int, memory: int) -> None:
        assert not self.there["placed", address], "memory is placed over other memory"
        if self.failing["place"] > 0:
            self.failing["place"] -= 1
            raise CallFailed("place", "CUDA_ERROR_OUT_OF_MEMORY")
        super().place(address, size, memory)
        self.there["placed", address] += 1

    def detach(self, address: int, size: int) -> None:
        self._gone("detach", "placed", address)
        super().detach(address, size)

    def own(self, size: int) -> int:
        address = super().own(size)
        self.there["own", address] += 1
        return address

    host = own

    def free(self, own: int) -> None:
        self._gone("free", "own", own)
        super().free(own)

    free_host = free

    @classmethod
    def left(cls) -> int:
        """How many things are still held."""
        return sum(cls.there.values())


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> type[Strict]:
    for counter in ("failing", "there", "calls"):
        monkeypatch.setattr(Strict, counter, Counter())
    monkeypatch.setattr(FakeNvlink, "driver", Strict)
    return Strict


def attached() -> Window:
    """A window with memory in both places."""
    window = Window(Strict(), SHAPE)
    attach(window)
    return window


def attach(window: Window) -> None:
    """As if a peer had the same memory."""
    descriptor = window.make()
    try:
        window.attach(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("call", ["detach", "release", "free"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_window_is_freed_in_as_many_tries_as_it_takes(strict: type[Strict], call: str, times: int) -> None:
    window = attached()
    strict.failing[call] = times
    with pytest.raises(ConnectorError, match=f"{call} failed"):
        window.free()
    window.free()
    assert strict.left() == 0
    done = dict(strict.calls)
    window.free()
    assert dict(strict.calls) == done
    assert done == {"detach": 2, "release": 2, "free": 2} | {call: 2 + times}


def test_addresses_stay_while_memory_is_at_them(strict: type[Strict]) -> None:
    window = attached()
    strict.failing["detach"] = 1
    with pytest.raises(ConnectorError):
        window.free()
    assert strict.left() == 2  # that memory and its addresses
    assert window.error() == (0, 0, 0)
    window.end()  # touches nothing of what is gone


def test_a_window_that_could_not_be_emptied_takes_the_next_peer(strict: type[Strict]) -> None:
    window = attached()
    strict.failing["detach"] = 1
    with pytest.raises(ConnectorError):
        attach(window)
    attach(window)
    window.free()
    assert strict.left() == 0


@pytest.mark.parametrize("detach", [0, 1])
def test_memory_that_finds_no_place_leaves_none_behind(strict: type[Strict], detach: int) -> None:
    window = attached()
    window.empty()
    real = strict.place
    placed: list[int] = []

    def place(driver: Strict, address: int, size: int, memory: int) -> None:
        if placed:
            strict.failing["place"], strict.failing["detach"] = 1, detach
        placed.append(address)
        real(driver, address, size, memory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strict, "place", place)
        with pytest.raises(ConnectorError, match="place failed"):
            attach(window)
    attach(window)
    window.free()
    assert strict.left() == 0


def test_what_could_not_be_had_is_given_back(strict: type[Strict], monkeypatch: pytest.MonkeyPatch) -> None:
    def host(_driver: Strict, _size: int) -> int:
        raise CallFailed("cuMemHostAlloc", "CUDA_ERROR_OUT_OF_MEMORY")

    monkeypatch.setattr(strict, "host", host)
    with pytest.raises(ConnectorError, match="cuMemHostAlloc"):
        Window(Strict(), SHAPE)
    assert strict.left() == 0


def test_one_peer_that_cannot_be_freed_is_told_and_hinders_no_other(
    strict: type[Strict], caplog: pytest.LogCaptureFixture
) -> None:
    """Windows of attention ranks that left are collected when the next one comes."""
    with Group(FakeNvlink, SHAPE, attention=2) as group:
        group.start_ffn()
        first = [group.open_attention(rank) for rank in (0, 1)]
        for port in first:
            group.forward(port, 1, 3)
            port.close()
        assert within(5, lambda: all(peer.state != "connected" for peer in group.ffn_port().peers()))
        strict.failing["detach"] = 1
        for seq in (1, 2, 3):  # more than one turn of collecting
            port = group.open_attention(0)
            group.forward(port, seq, 3)
            port.close()
            assert within(5, lambda: group.ffn_port().peers()[0].state != "connected")
    assert strict.failing["detach"] == 0
    told = [record for record in caplog.records if "could not be given back" in record.message]
    assert len(told) == 1
    assert within(5, lambda: strict.left() == 2)  # the memory that stays, and its addresses
