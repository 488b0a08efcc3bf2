"""Clauses about FFN ranks that end and start again in order, and about having nothing to do."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from afd_connectors.errors import PeerLost
from afd_connectors.ports import AttentionPort, Work
from afd_connectors.step import Mode, Step
from afd_connectors.testing.clauses import BLOCKING, Clauses, clause
from afd_connectors.testing.group import Group, answer_of


class FailureClauses(Clauses):
    """Failure, where nobody needs to be killed."""

    @clause("5.1")
    def test_idle_is_safe(self) -> None:
        """Nothing to do is no error, before and after a peer came."""
        with self.group() as group:
            ffn = group.build("ffn").open_ffn()
            try:
                assert ffn.recv(wait_s=0.05) is None
                group.open_attention()
                start = time.monotonic()
                assert ffn.recv(wait_s=0.3) is None
                assert 0.2 < time.monotonic() - start < 3
            finally:
                ffn.close()

    @clause("5.3", needs=[BLOCKING])
    @pytest.mark.parametrize("moment", ["before the send", "before the answer"])
    def test_ffn_ends(self, moment: str) -> None:
        """With "reconnect" a restarted FFN rank finishes the exchange; without it the error is PeerLost."""
        with self.group() as group:
            group.start_ffn()
            port = group.open_attention()
            group.forward(port, 1, 3, 2)
            step = Step(2, Mode.EAGER, (3, 2))
            port.begin(step)
            group.exchange(port, step, 0, stage=0)
            hidden = [group.rows(3), group.rows(2)]
            if moment == "before the send":
                group.stop_ffn()
                for stage in (0, 1):
                    port.send(step, 1, hidden[stage], stage=stage)
            else:
                self._end_while_computing(group, port, step, hidden)
            if not self.can("reconnect"):
                with pytest.raises(PeerLost):
                    port.recv(step, 1, torch.empty_like(hidden[0]))
                return
            restart = threading.Timer(0.5, group.start_ffn)
            restart.start()
            for stage in (0, 1):
                out = torch.empty_like(hidden[stage])
                port.recv(step, 1, out, stage=stage)
                assert torch.equal(out, answer_of(hidden[stage], 1, stage))
            restart.join()
            group.exchange(port, step, 2)
            group.forward(port, 3, 5)

    def _end_while_computing(self, group: Group, port: AttentionPort, step: Step, hidden: list[torch.Tensor]) -> None:
        taken = threading.Event()
        native = group.compute

        def never(_rank: int, _work: Work) -> None:
            taken.set()

        group.compute = never
        for stage, rows in enumerate(hidden):
            port.send(step, 1, rows, stage=stage)
        assert taken.wait(5.0)
        group.stop_ffn()
        group.compute = native

    @clause("5.3", needs=[BLOCKING])
    def test_ffn_restarts_between_steps(self) -> None:
        """With "reconnect" nobody notices a restart while no exchange is open; without it the error is
        PeerLost.
        """
        with self.group() as group:
            group.start_ffn()
            port = group.open_attention()
            group.forward(port, 1, 3)
            group.stop_ffn()
            group.start_ffn()
            if self.can("reconnect"):
                group.forward(port, 2, 4)
            else:
                with pytest.raises(PeerLost):
                    group.forward(port, 2, 4)
