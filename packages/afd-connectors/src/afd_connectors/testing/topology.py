"""Clauses about topology: any number of ranks on either side, each with its own rows and its own pace."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from afd_connectors.ports import AttentionPort
from afd_connectors.step import Mode, Step
from afd_connectors.testing.clauses import BLOCKING, Clauses, clause
from afd_connectors.testing.group import Group, within


class TopologyClauses(Clauses):
    """Topology."""

    @clause("3.1")
    @pytest.mark.parametrize(("attention", "ffn"), [(2, 1), (3, 1), (2, 2)])
    def test_fan_in(self, attention: int, ffn: int) -> None:
        """Attention ranks that share FFN ranks, each at its own pace, get their own rows back."""
        self._drive(attention, ffn)

    @clause("3.2")
    @pytest.mark.parametrize(("attention", "ffn"), [(3, 2), (5, 2), (2, 3), (3, 5)])
    def test_uneven_ratios(self, attention: int, ffn: int) -> None:
        """Neither count needs to divide the other."""
        self._drive(attention, ffn)

    @clause("3.3")
    @pytest.mark.parametrize(("attention", "ffn"), [(1, 2), (1, 3), (2, 4)])
    def test_fan_out(self, attention: int, ffn: int) -> None:
        """A rank with several FFN ranks gives each a block and gets its rows back in order; empty blocks stay."""
        with self.group(attention=attention, ffn=ffn) as group:
            group.start_ffn()
            for rank in range(attention):
                port = group.open_attention(rank)
                for seq, tokens in enumerate([(7,), (1,), (16, 2), (0, 1)]):
                    group.forward(port, seq, *tokens)
            assert {rank for rank, _, _ in group.works} == set(range(ffn))

    @clause("3.4")
    def test_peers_at_one_layer_are_computed_together(self) -> None:
        """Rows that wait at the same layer make one work, in the order of the ranks."""
        with self.group(attention=2) as group, group.manual_ffn() as ffn:
            ports, sent = {}, {}
            for rank, count in ((1, 3), (0, 2)):
                ports[rank] = group.open_attention(rank)
                step = Step(1, Mode.EAGER, (count,))
                sent[rank] = group.rows(count)
                ports[rank].begin(step)
                ports[rank].send(step, 0, sent[rank])
            # A rank may send before the other role has a place for it, and is not waited for until then.
            assert within(5, lambda: all(peer.state == "connected" for peer in ffn.peers()))
            work = group.take(ffn)
            assert torch.equal(work.hidden, torch.cat([sent[0], sent[1]]))
            ffn.send(work, work.hidden + 1)
            for rank, rows in sent.items():
                out = torch.empty_like(rows)
                ports[rank].recv(Step(1, Mode.EAGER, (rows.shape[0],)), 0, out)
                assert torch.equal(out, rows + 1)

    @clause("3.5", needs=[BLOCKING])
    def test_an_idle_peer_holds_nobody_up(self) -> None:
        """A rank that never came, has no step, has one without rows or stopped in one is not waited for."""
        with self.group(attention=5) as group:
            group.start_ffn()
            ports = {rank: group.open_attention(rank) for rank in range(4)}
            ports[1].begin(Step(1, Mode.EAGER, (0,)))
            stopped = Step(1, Mode.EAGER, (3,))
            ports[2].begin(stopped)
            group.exchange(ports[2], stopped, 0)
            start = time.monotonic()
            group.forward(ports[0], 1, 4)
            assert time.monotonic() - start < group.settings.timeout_s / 2

    @clause("3.6")
    def test_peers_are_known(self) -> None:
        """Both ports tell the states of all their peers."""
        with self.group(attention=2) as group:
            group.start_ffn()
            port = group.open_attention(1)
            assert [(p.rank, p.state) for p in port.peers()] == [(0, "connected")]
            ffn = group.ffn_port()
            assert within(5, lambda: [p.state for p in ffn.peers()] == ["waiting", "connected"])
            port.close()
            assert within(5, lambda: [p.state for p in ffn.peers()][1] != "connected")

    def _drive(self, attention: int, ffn: int) -> None:
        with self.group(attention=attention, ffn=ffn) as group:
            group.start_ffn()
            failed: list[BaseException] = []
            ports = [group.open_attention(rank) for rank in range(attention)]
            threads = [
                threading.Thread(target=_steps, args=(group, ports, rank, failed), daemon=True)
                for rank in range(attention)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30.0)
            assert not failed, failed
            assert not any(thread.is_alive() for thread in threads)
            assert {rank for rank, _, _ in group.works} == set(range(ffn))


def _steps(group: Group, ports: list[AttentionPort], rank: int, failed: list[BaseException]) -> None:
    try:
        with group.stream():
            for seq in range(6):
                group.forward(ports[rank], seq, 1 + (rank * 5 + seq) % 7, rank)
    except BaseException as error:  # noqa: BLE001 - raised by the test on its own thread
        failed.append(error)
