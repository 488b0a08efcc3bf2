"""Clauses about attention ranks that are killed, at every point of an exchange."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from afd_connectors.ports import Work
from afd_connectors.step import Mode, Step
from afd_connectors.testing.clauses import BLOCKING, PROCESSES, Clauses, clause
from afd_connectors.testing.group import Group, answer_of, within
from afd_connectors.testing.kills import ON_ITS_WAY
from afd_connectors.testing.processes import processes_of


class AttentionKillClauses(Clauses):
    """Failure of attention ranks, by kill -9."""

    @clause("5.7", needs=[PROCESSES, BLOCKING])
    @pytest.mark.parametrize(
        "point", ["no step", "step announced", "request on its way", "request taken", "answer on its way", "answered"]
    )
    def test_attention_killed(self, point: str) -> None:
        """Its peers are served as if nothing had happened, and its replacement is let in."""
        sizes = ON_ITS_WAY if "on its way" in point else {}
        with self.group(attention=2, dtype="float32", **sizes) as group, processes_of(group) as processes:
            busy = _Busy(group)
            group.start_ffn()
            steady, victim = group.open_attention(1), processes.attention(0)
            step = Step(1, Mode.EAGER, (4,))
            steady.begin(step)
            if point != "no step":
                victim.ask("begin", 1, group.shape.tokens)
            if point == "request on its way":
                with busy:  # with the steady rank's rows, so that nobody takes in the request
                    hidden = group.rows(4)
                    steady.send(step, 0, hidden)
                    assert busy.entered.wait(10)
                    victim.tell("send", 0, 0)
                    time.sleep(0.3)
                    victim.kill()
                out = torch.empty_like(hidden)
                steady.recv(step, 0, out)
                assert torch.equal(out, answer_of(hidden, 0, 0))
            elif point == "request taken":
                with busy:
                    victim.ask("send", 0, 0)
                    assert busy.entered.wait(10)
                    victim.kill()
            elif point == "answer on its way":
                victim.ask("send", 0, 0)
                assert within(10, lambda: bool(group.works))
                group.exchange(steady, step, 0)  # a rank that does not take its answer holds nobody up
                victim.kill()
            elif point == "answered":
                victim.ask("send", 0, 0)
                victim.ask("recv", 0, 0)
            victim.end()
            group.exchange(steady, step, 1)
            group.forward(steady, 2, 3)
            group.forward(group.open_attention(0), 1, 5)


class _Busy:
    """Within it the group's FFN rank computes without end."""

    def __init__(self, group: Group) -> None:
        self.entered = threading.Event()
        self._free = threading.Event()
        self._free.set()
        self._native: Callable[[int, Work], Tensor | None] = group.compute
        group.compute = self._compute

    def __enter__(self) -> None:
        self._free.clear()

    def __exit__(self, *_: object) -> None:
        self._free.set()

    def _compute(self, rank: int, work: Work) -> Tensor | None:
        if not self._free.is_set():
            self.entered.set()
            assert self._free.wait(30)
        return self._native(rank, work)
