"""Clauses about what goes wrong: every wait ends, every error says where, exchanges survive if declared."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from afd_connectors.errors import ConnectorError, DeadlineExceeded, PeerLost
from afd_connectors.ports import AttentionPort, Work
from afd_connectors.step import Mode, Step
from afd_connectors.testing.clauses import Clauses
from afd_connectors.testing.group import Group, answer_of


class FailureClauses(Clauses):
    """Failures."""

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

    def test_errors_name_everything(self) -> None:
        """An answer that never comes ends in time, and the error says what, who and where."""
        with self.group() as group:
            group.limits(timeout_s=0.6, recovery_timeout_s=1.2)
            group.compute = lambda _rank, _work: None
            group.start_ffn()
            port = group.open_attention()
            step = Step(41, Mode.EAGER, (2, 3))
            port.begin(step)
            port.send(step, 2, group.rows(3), stage=1)
            start = time.monotonic()
            with pytest.raises((DeadlineExceeded, PeerLost)) as caught:
                port.recv(step, 2, group.rows(3), stage=1)
            assert time.monotonic() - start < 8
            error = caught.value
            assert isinstance(error, ConnectorError)
            assert (error.transport, error.role) == (self.connector().name, "attention")
            assert (error.rank, error.peer) == (0, 0)
            assert (error.step, error.layer, error.stage) == (41, 2, 1)
            assert error.own_event is not None
            for part in ("attention rank 0", "FFN rank 0", "step 41", "layer 2", "stage 1"):
                assert part in str(error)
            assert "own last event: " in str(error)
            assert "peer's last event: " in str(error)

    @pytest.mark.parametrize("moment", ["before the send", "before the answer"])
    def test_ffn_dies(self, moment: str) -> None:
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
                self._die_while_computing(group, port, step, hidden)
            if "reconnect" not in self.connector().features:
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

    def _die_while_computing(self, group: Group, port: AttentionPort, step: Step, hidden: list[torch.Tensor]) -> None:
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
            if "reconnect" in self.connector().features:
                group.forward(port, 2, 4)
            else:
                with pytest.raises(PeerLost):
                    group.forward(port, 2, 4)

    def test_step_that_was_given_up(self) -> None:
        """Answers of a step that was left in the middle are never taken for those of the next."""
        with self.group() as group:
            group.start_ffn()
            port = group.open_attention()
            step = Step(1, Mode.EAGER, (3,))
            port.begin(step)
            port.send(step, 0, group.rows(3))
            group.forward(port, 2, 3)

    def test_mistakes_are_value_errors(self) -> None:
        """Wrong sizes, dtypes and orders of calls are refused before anything is sent, and do no harm."""
        with self.group() as group:
            group.start_ffn()
            port = group.open_attention()
            step = Step(5, Mode.EAGER, (3,))
            with pytest.raises(ValueError, match="begin"):
                port.send(step, 0, group.rows(3))
            port.begin(step)
            with pytest.raises(ValueError, match="larger"):
                port.begin(Step(5, Mode.EAGER, (3,)))
            with pytest.raises(ValueError, match="rows"):
                port.begin(Step(6, Mode.EAGER, (17,)))
            with pytest.raises(ValueError, match=r"hidden must be \[3, 8\], found \[4, 8\]"):
                port.send(step, 0, group.rows(4))
            with pytest.raises(ValueError, match="float32"):
                port.send(step, 0, group.rows(3).float())
            with pytest.raises(ValueError, match="layer"):
                port.send(step, 3, group.rows(3))
            with pytest.raises(ValueError, match="send"):
                port.recv(step, 0, group.rows(3))
            port.send(step, 0, group.rows(3))
            with pytest.raises(ValueError, match="without answer"):
                port.send(step, 0, group.rows(3))
            with pytest.raises(ValueError, match="out must be"):
                port.recv(step, 0, group.rows(2))
            port.recv(step, 0, group.rows(3))
            group.exchange(port, step, 1)
