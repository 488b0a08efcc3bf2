"""Clauses about closing: at any time, from any thread, as often as one likes, and nothing stays behind."""

from __future__ import annotations

import os
import threading
import time

import pytest
import torch

from afd_connectors.errors import ConnectorError, PeerLost
from afd_connectors.step import Mode, Step
from afd_connectors.testing.clauses import BLOCKING, Clauses, clause
from afd_connectors.testing.group import Group, answer_of, within


class ClosingClauses(Clauses):
    """Closing."""

    @clause("6.1")
    def test_close_twice(self) -> None:
        """Closing again does nothing, and a closed port says so."""
        with self.group() as group:
            ffn = group.build("ffn").open_ffn()
            attention = group.open_attention()
            for port in (attention, ffn, attention, ffn):
                port.close()
            with pytest.raises(ConnectorError, match="closed"):
                attention.begin(Step(1, Mode.EAGER, (1,)))
            with pytest.raises(ConnectorError, match="closed"):
                ffn.recv(wait_s=0.1)

    @clause("6.2", needs=[BLOCKING])
    def test_close_while_waiting(self) -> None:
        """Closing a port from another thread ends its waits at once."""
        with self.group() as group:
            ffn = group.build("ffn").open_ffn()
            attention = group.open_attention()
            step = Step(1, Mode.EAGER, (2,))
            attention.begin(step)
            attention.send(step, 0, group.rows(2))
            group.take(ffn)
            start = time.monotonic()
            for port in (attention, ffn):
                threading.Timer(0.3, port.close).start()
            with pytest.raises(ConnectorError):
                attention.recv(step, 0, group.rows(2))
            try:
                late = ffn.recv(wait_s=30.0)
            except ConnectorError:  # the close came before the wait
                late = None
            assert late is None
            assert time.monotonic() - start < 4

    @clause("6.3", needs=[BLOCKING])
    def test_ffn_closes_while_a_peer_waits(self) -> None:
        """The attention rank learns it at once, not after timeout_s: it fails, or reaches the successor."""
        with self.group() as group:
            group.limits(timeout_s=30.0, recovery_timeout_s=30.0)
            group.compute = lambda _rank, _work: None
            group.start_ffn()
            port = group.open_attention()
            step = Step(1, Mode.EAGER, (2,))
            port.begin(step)
            hidden, out = group.rows(2), group.rows(2)
            port.send(step, 0, hidden)
            assert within(5, lambda: bool(group.works))

            def replace() -> None:
                group.stop_ffn()
                group.compute = lambda _rank, work: answer_of(work.hidden, work.layer, work.stage)
                group.start_ffn()

            start = time.monotonic()
            closing = threading.Timer(0.3, replace)
            closing.start()
            if self.can("reconnect"):
                port.recv(step, 0, out)
                assert torch.equal(out, answer_of(hidden, 0, 0))
            else:
                with pytest.raises(PeerLost):
                    port.recv(step, 0, out)
            assert time.monotonic() - start < 10
            closing.join(10)

    @clause("6.3", needs=[BLOCKING])
    def test_attention_closes_while_the_ffn_waits(self) -> None:
        """The FFN rank goes on waiting and answering; nothing is raised there, and the place is free."""
        with self.group() as group, group.manual_ffn() as ffn:
            first = group.open_attention()
            step = Step(1, Mode.EAGER, (2,))
            first.begin(step)
            first.send(step, 0, group.rows(2))
            work = group.take(ffn)
            first.close()
            assert ffn.recv(wait_s=0.3) is None
            ffn.send(work, work.hidden)
            threading.Timer(0.2, group.open_attention).start()
            assert ffn.recv(wait_s=0.5) is None
            assert within(5, lambda: [p.state for p in ffn.peers()] == ["connected"])

    @clause("6.4")
    def test_reopen(self) -> None:
        """The same address serves again right after a close."""
        with self.group() as group:
            for _ in range(3):
                _once(group)

    @clause("6.5")
    def test_nothing_stays_behind(self) -> None:
        """Threads and file descriptors of closed ports are gone."""
        with self.group(attention=2, ffn=2) as group:
            _once(group)
            threads, files = threading.active_count(), _open_files()
            for _ in range(5):
                _once(group)
            assert within(5, lambda: threading.active_count() <= threads), threading.enumerate()
            assert within(5, lambda: _open_files() <= files), f"{files} open files became {_open_files()}"


def _once(group: Group) -> None:
    """Opens all ranks, runs a step and closes them."""
    group.start_ffn()
    ports = [group.open_attention(rank) for rank in range(group.counts[0])]
    for port in ports:
        group.forward(port, 1, 3)
        port.close()
    for rank in range(group.counts[1]):
        group.stop_ffn(rank)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
