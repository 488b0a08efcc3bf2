"""Rows that a tensor-parallel group shares come back whole on every rank, each computed once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from hypothesis import given
from hypothesis import strategies as st

from afd_connectors.ports import AttentionPort, PeerStatus
from afd_connectors.step import Mode, Step
from afd_models.exchange import Exchange
from afd_models.kept import Kept
from afd_models.shares import AllRows, FirstRows, Rows, SharedRows

HIDDEN, WAIT_S = 3, 20.0


class Group:
    """Threads in place of a tensor-parallel group."""

    def __init__(self, size: int) -> None:
        self.size, self._parts = size, [torch.empty(0)] * size
        self._barrier = threading.Barrier(size)

    def gather(self, rank: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def all_gather(part: torch.Tensor) -> torch.Tensor:
            self._parts[rank] = part
            self._barrier.wait(WAIT_S)
            assert len({each.shape for each in self._parts}) == 1, "a gather takes equal parts"
            whole = torch.cat(self._parts)
            self._barrier.wait(WAIT_S)
            return whole

        return all_gather

    def broadcast(self, rank: int) -> Callable[[torch.Tensor], None]:
        def from_first(out: torch.Tensor) -> None:
            self._parts[rank] = out
            self._barrier.wait(WAIT_S)
            if rank:
                out.copy_(self._parts[0])
            self._barrier.wait(WAIT_S)

        return from_first

    def rows(self, rank: int, shared: bool) -> Rows:
        if self.size == 1:
            return AllRows()
        return SharedRows(rank, self.size, self.gather(rank)) if shared else FirstRows(rank, self.broadcast(rank))


class Port(AttentionPort):
    """Answers a row with the row plus one and keeps what it was asked."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.sent: list[torch.Tensor] = []

    def begin(self, step: Step) -> None:
        self.steps.append(step)

    def send(
        self, step: Step, layer: int, hidden: torch.Tensor, router: torch.Tensor | None = None, *, stage: int = 0
    ) -> None:
        assert step.tokens[stage] == hidden.shape[0] > 0, "a rank without rows exchanges nothing"
        assert router is None or torch.equal(router, hidden[:, :2] * 2), "logits are of the rows beside them"
        self.sent.append(hidden.clone())

    def recv(self, step: Step, layer: int, out: torch.Tensor, *, stage: int = 0) -> None:
        out.copy_(self.sent[-1] + 1)

    def peers(self) -> tuple[PeerStatus, ...]:
        return ()

    def close(self) -> None:
        """Nothing to free."""


def run(size: int, count: int, layers: int, shared: bool) -> tuple[list[torch.Tensor], list[Port], torch.Tensor]:
    """What each rank of a group has after one step on the same rows."""
    group, ports = Group(size), [Port() for _ in range(size)]
    hidden = torch.arange(count * HIDDEN, dtype=torch.float32).reshape(count, HIDDEN).clone()

    def rank_of(rank: int) -> torch.Tensor:
        exchange = Exchange()
        exchange.connect(ports[rank], 0, group.rows(rank, shared))
        exchange.keep(1, Kept(gate=lambda rows: (rows[:, :2] * 2, None)))
        out = torch.empty_like(hidden)
        for layer in range(layers):
            exchange.run(hidden, out, layer)
        assert exchange.figures.exchanges == layers
        return out

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(rank_of, range(size), timeout=WAIT_S)), ports, hidden


@given(st.integers(1, 6), st.integers(0, 40), st.integers(1, 2), st.booleans())
def test_every_rank_gets_every_row_and_every_row_is_sent_once(size: int, count: int, layers: int, shared: bool) -> None:
    outs, ports, hidden = run(size, count, layers, shared)
    for out in outs:
        assert torch.equal(out, hidden + 1)
    sent = [rows for port in ports for rows in port.sent[:1]]
    assert torch.equal(torch.cat(sent) if sent else hidden[:0], hidden)
    assert [len(port.steps) for port in ports] == [1] * size
    assert sum(port.steps[0].tokens[0] for port in ports) == count


@given(st.integers(1, 6), st.integers(0, 40), st.booleans())
def test_each_rank_announces_a_replay_with_its_own_rows(size: int, count: int, shared: bool) -> None:
    group, hidden = Group(size), torch.zeros(count, HIDDEN)
    own = [group.rows(rank, shared) for rank in range(size)]
    assert [rows.count(count) for rows in own] == [rows.own(hidden).shape[0] for rows in own]
    assert sum(rows.count(count) for rows in own) == count
    for rows in own:
        port, exchange = Port(), Exchange()
        exchange.connect(port, 0, rows)
        exchange.replay((count, 7), 3)
        assert port.steps[0].tokens == (rows.count(count), rows.count(7))


def test_a_forward_is_announced_when_it_begins_and_again_only_where_it_has_other_rows() -> None:
    port, exchange = Port(), Exchange()
    exchange.expect(4)  # before it is connected, as in vLLM's first forward
    exchange.connect(port, 0, AllRows())
    hidden, fewer = torch.zeros(4, HIDDEN), torch.zeros(2, HIDDEN)
    for rows in (hidden, fewer):
        exchange.expect(4)
        for layer in range(2):
            exchange.run(rows, torch.empty_like(rows), layer)
    exchange.run(hidden, torch.empty_like(hidden), 0)  # one that nobody expected
    assert [step.tokens for step in port.steps] == [(4,), (4,), (2,), (4,)]
    assert [step.seq for step in port.steps] == [1, 2, 3, 4]


def test_a_forward_without_exchanges_leaves_its_announcement_to_no_other() -> None:
    port, exchange = Port(), Exchange()
    exchange.connect(port, 0, AllRows())
    hidden = torch.zeros(4, HIDDEN)
    exchange.expect(4)
    exchange.forget()
    exchange.run(hidden, torch.empty_like(hidden), 0)
    exchange.replay((4,), 1)
    exchange.run(hidden, torch.empty_like(hidden), 0)
    assert [(step.seq, step.tokens, step.mode) for step in port.steps] == [
        (1, (4,), Mode.EAGER),
        (2, (4,), Mode.EAGER),
        (3, (4,), Mode.REPLAY),
        (4, (4,), Mode.EAGER),
    ]
    exchange.expect(4)
    exchange.replay((4,), 1)  # a graph instead of the forward that was announced
    exchange.run(hidden, torch.empty_like(hidden), 0)
    assert [step.mode for step in port.steps[4:]] == [Mode.EAGER, Mode.REPLAY, Mode.EAGER]
