"""Clauses about steps that are void since a rank was lost in them, and about repeating them over the same port."""

from __future__ import annotations

import threading
import time

import pytest

from afd_connectors.errors import PeerLost
from afd_connectors.event import Phase
from afd_connectors.ports import AttentionPort
from afd_connectors.step import Mode, Step
from afd_connectors.stepped import DeviceAttentionPort
from afd_connectors.testing.clauses import Clauses, clause
from afd_connectors.testing.device import settle
from afd_connectors.testing.group import Group, within
from afd_connectors.testing.recorded import Recorded
from afd_connectors.testing.silenced import Silenced


class VoidClauses(Clauses):
    """Steps that are void, where nobody needs to be killed."""

    @clause("10.6", "5.2", "7.1", "7.2", needs=["graph"])
    def test_a_silent_rank_voids_the_step(self) -> None:
        """Calls raise nothing and end in time; the witness says what, who and where, and what both did last."""
        with self.group(attention=2, ffn=2) as group:
            group.limits(timeout_s=2.0, recovery_timeout_s=4.0)
            held = Silenced(group)
            group.start_ffn()
            port = group.open_attention(1)
            step = Step(41, Mode.EAGER, (2,))
            port.begin(step)
            start = time.monotonic()
            error = lost_in(group, port, step)
            assert 1.9 < time.monotonic() - start < 8
            assert (error.transport, error.role) == (self.connector().name, "attention")
            assert (error.rank, error.peer, error.step) == (1, 1, 41)
            assert error.own_event is not None
            assert error.own_event.seq == 41
            assert error.peer_event is not None
            assert error.peer_event[0] is Phase.COMPUTED
            for part in ("attention rank 1", "peer FFN rank 1", "step 41", self.connector().name, "void"):
                assert part in str(error)
            assert "own last event: " in str(error)
            assert "peer's last event: took up layer " in str(error)
            assert "\n" not in str(error)
            assert [peer.state for peer in port.peers()] == ["lost"]
            held.free.set()

    @clause("10.6", "10.7", needs=["graph"])
    @pytest.mark.parametrize("moment", ["between steps", "in mid-step"])
    def test_ffn_ends_under_enqueued_steps(self, moment: str) -> None:
        """The loss is told at once, not after timeout_s; with "reconnect" the successor serves the repeated step, and
        is asked for nothing else.
        """
        with self.group() as group:
            group.limits(timeout_s=30.0, recovery_timeout_s=30.0)
            group.start_ffn()
            port = group.open_attention()
            assert isinstance(port, DeviceAttentionPort)
            group.forward(port, 1, 3, 2)
            start = time.monotonic()
            if moment == "between steps":
                group.stop_ffn()
                assert within(5, port.lost)
            else:
                _ended_while_computing(group, port, Step(2, Mode.EAGER, (3, 2)))
            assert time.monotonic() - start < 8
            if not self.can("reconnect"):
                return
            group.works.clear()
            late = threading.Timer(0.5, group.start_ffn)
            late.start()
            port.rejoin()
            late.join(10)
            assert not port.lost()
            group.forward(port, 3, 3, 2)
            assert {(work.step.seq, work.step.mode) for _, work, _ in group.works} == {(3, Mode.EAGER)}
            assert len(group.works) == 2 * group.shape.layers

    @clause("10.7", needs=["graph", "reconnect"])
    def test_ffn_restarts_between_enqueued_steps(self) -> None:
        """A rank that was replaced while nothing was enqueued costs its peers at most one step."""
        with self.group() as group:
            group.start_ffn()
            port = group.open_attention()
            group.forward(port, 1, 3)
            group.stop_ffn()
            group.start_ffn()
            assert group.repeated(port, 2, 4) <= 3

    @clause("10.7", needs=["graph", "reconnect"])
    def test_graphs_after_a_loss(self) -> None:
        """Of a port whose graphs are lasting the same one works over the next connection; else it is captured again."""
        with self.group() as group:
            group.start_ffn()
            port = group.open_attention()
            assert isinstance(port, DeviceAttentionPort)
            recorded = Recorded(group, port, 4)
            recorded.run()
            group.stop_ffn()
            assert within(5, port.lost)
            group.start_ffn()
            port.rejoin()
            if not port.lasting:
                recorded.record()
            recorded.run()

    @clause("10.10", needs=["graph", "reconnect"])
    def test_ffn_stays_away(self) -> None:
        """Joining again ends within recovery_timeout_s, says what was lost, where and when, and may be tried again."""
        with self.group() as group:
            group.limits(timeout_s=2.0, recovery_timeout_s=1.5)
            group.start_ffn()
            port = group.open_attention()
            assert isinstance(port, DeviceAttentionPort)
            group.forward(port, 7, 5, 3)
            group.stop_ffn()
            assert within(5, port.lost)
            start = time.monotonic()
            with pytest.raises(PeerLost, match=r"within 1.5 s") as caught:
                port.rejoin()
            assert time.monotonic() - start < 6
            assert (caught.value.step, caught.value.peer) == (7, 0)
            assert [peer.state for peer in port.peers()] == ["lost"]
            group.start_ffn()
            port.rejoin()
            group.forward(port, 8, 5, 3)


def lost_in(group: Group, port: AttentionPort, step: Step) -> PeerLost:
    """Issues the exchanges of a step that has begun; the error of its witness, which it must have."""
    assert isinstance(port, DeviceAttentionPort)
    with port.awaiting():  # from the first call on: those of a stand-in for a device wait by themselves
        for layer in range(group.shape.layers):
            for stage, rows in enumerate(step.tokens):
                port.send(step, layer, group.rows(rows), stage=stage)
                port.recv(step, layer, group.rows(rows), stage=stage)
        check = port.witness()
        settle(group.device)
    with pytest.raises(PeerLost) as caught:
        check()
    return caught.value


def _ended_while_computing(group: Group, port: AttentionPort, step: Step) -> None:
    """Its FFN rank closes once it has taken an exchange."""
    held = Silenced(group)

    def end() -> None:
        assert held.taken.wait(10)
        group.ffn_port().close()
        held.free.set()
        group.stop_ffn()

    ending = threading.Thread(target=end)
    ending.start()
    port.begin(step)
    try:
        error = lost_in(group, port, step)
    finally:
        ending.join(20)
    assert (error.peer, error.step) == (0, step.seq)
    held.end()
