"""Clauses about errors: one sentence and the same as fields, and mistakes refused before they do harm."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from afd_connectors.errors import ConnectorError, DeadlineExceeded, PeerLost
from afd_connectors.event import Phase
from afd_connectors.step import Mode, Step
from afd_connectors.testing.clauses import BLOCKING, Clauses, clause


class ErrorClauses(Clauses):
    """Errors."""

    @clause("7.1", "7.2", "5.2", needs=[BLOCKING])
    def test_errors_name_everything(self) -> None:
        """An answer that never comes ends in time; the error says what, who and where, and what both did last."""
        with self.group(attention=2, ffn=2) as group:
            group.limits(timeout_s=2.0, recovery_timeout_s=0.5)
            group.compute = lambda _rank, _work: None
            group.start_ffn()
            port = group.open_attention(1)
            step = Step(41, Mode.EAGER, (2, 3))
            port.begin(step)
            port.send(step, 2, group.rows(3), stage=1)
            start = time.monotonic()
            with pytest.raises((DeadlineExceeded, PeerLost)) as caught:
                port.recv(step, 2, group.rows(3), stage=1)
            assert 1.9 < time.monotonic() - start < 8
            error = caught.value
            assert isinstance(error, ConnectorError)
            assert (error.transport, error.role) == (self.connector().name, "attention")
            assert (error.rank, error.peer) == (1, 1)
            assert (error.step, error.layer, error.stage) == (41, 2, 1)
            assert error.own_event is not None
            assert error.own_event.seq == 41
            assert error.peer_event is not None
            assert error.peer_event[0] is Phase.COMPUTED
            assert (error.peer_event.seq, error.peer_event.layer, error.peer_event.stage) == (41, 2, 1)
            for part in ("attention rank 1", "peer FFN rank 1", "step 41", "layer 2", "stage 1", self.connector().name):
                assert part in str(error)
            assert "own last event: " in str(error)
            assert "peer's last event: took up layer 2 stage 1 of step 41" in str(error)
            assert "\n" not in str(error)

    @clause("7.3")
    def test_wrong_tensors(self) -> None:
        """Wrong sizes and dtypes are ValueErrors on the calling side that say both, and do no harm."""
        with self.group() as group:
            group.start_ffn()
            port = group.open_attention()
            step = Step(5, Mode.EAGER, (3,))
            port.begin(step)
            with pytest.raises(ValueError, match=r"hidden must be \[3, 8\], found \[4, 8\]"):
                port.send(step, 0, group.rows(4))
            with pytest.raises(ValueError, match=r"hidden must be \[3, 8\], found \[3, 7\]"):
                port.send(step, 0, group.rows(3)[:, :7])
            with pytest.raises(ValueError, match="bfloat16, found float32"):
                port.send(step, 0, group.rows(3).float())
            with pytest.raises(ValueError, match="router"):
                port.send(step, 0, group.rows(3), torch.zeros(3, 4))
            port.send(step, 0, group.rows(3))
            with pytest.raises(ValueError, match="out must be"):
                port.recv(step, 0, group.rows(2))
            with pytest.raises(ValueError, match="bfloat16, found float32"):
                port.recv(step, 0, group.rows(3).float())
            port.recv(step, 0, group.rows(3))
            group.exchange(port, step, 1)

    @clause("7.3")
    @pytest.mark.parametrize("mistake", ["size", "width", "dtype"])
    def test_wrong_answers(self, mistake: str) -> None:
        """The FFN's wrong answer is a ValueError there; the right one is taken afterwards."""
        with self.group() as group, group.manual_ffn() as ffn:
            port = group.open_attention()
            step = Step(5, Mode.EAGER, (3,))
            port.begin(step)
            sent, out = group.rows(3), group.rows(3)
            port.send(step, 0, sent)
            work = group.take(ffn)
            wrong = {"size": group.rows(4), "width": group.rows(3)[:, :7], "dtype": group.rows(3).float()}
            with pytest.raises(ValueError, match="answer"):
                ffn.send(work, wrong[mistake])
            ffn.send(work, work.hidden + 1)
            port.recv(step, 0, out)
            assert torch.equal(out, sent + 1)

    @clause("7.4")
    def test_wrong_role(self) -> None:
        """The port of the other role cannot be opened."""
        with self.group() as group:
            with pytest.raises(ValueError, match="FFN port"):
                group.build("attention").open_ffn()
            with pytest.raises(ValueError, match="attention port"):
                group.build("ffn").open_attention()

    @clause("7.5")
    def test_address_in_use(self) -> None:
        """A second FFN rank at one address is refused in a sentence with the address; the first goes on."""
        with self.group() as group:
            group.start_ffn()
            with pytest.raises(ConnectorError, match=str(group.settings.port)):
                group.build("ffn").open_ffn()
            group.forward(group.open_attention(), 1, 3)

    @clause("7.6")
    def test_a_peer_is_no_error_on_the_ffn(self) -> None:
        """Attention ranks that come, leave in mid-step and come again raise nothing in the FFN's calls."""
        with self.group(attention=2) as group:
            group.start_ffn()
            steady = group.open_attention(1)
            for seq in range(4):
                port = group.open_attention(0)
                step = Step(1, Mode.EAGER, (3,))
                port.begin(step)
                port.send(step, 0, group.rows(3))
                leaving = threading.Timer(0.01 * seq, port.close)
                leaving.start()
                group.forward(steady, seq, 2)
                leaving.join(10)
