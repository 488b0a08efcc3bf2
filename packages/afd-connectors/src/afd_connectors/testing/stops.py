"""Clauses about processes that stand still (SIGSTOP) and go on: too briefly to matter, or until they are given up."""

from __future__ import annotations

import threading
import time

import pytest

from afd_connectors.errors import DeadlineExceeded, PeerLost
from afd_connectors.step import Mode, Step
from afd_connectors.testing.clauses import BLOCKING, PROCESSES, Clauses, clause
from afd_connectors.testing.processes import processes_of


class StopClauses(Clauses):
    """Failure, by SIGSTOP."""

    @clause("5.8", needs=[PROCESSES])
    def test_ffn_stops_briefly(self) -> None:
        """Within timeout_s nothing happens but the wait: no error, no new connection."""
        with self.group() as group, processes_of(group) as processes:
            ffn = processes.ffn(serving=True)
            port = group.open_attention()
            step = Step(1, Mode.EAGER, (5,))
            if self.can(BLOCKING):
                port.begin(step)
                group.exchange(port, step, 0)
            else:  # of a step that has begun its device may do the rest without it
                group.forward(port, 1, 5)
            before = [(peer.state, peer.since) for peer in port.peers()]
            ffn.stop()
            going_on = threading.Timer(1.5, ffn.resume)
            going_on.start()
            start = time.monotonic()
            if self.can(BLOCKING):
                group.exchange(port, step, 1)
            else:
                group.forward(port, 2, 5)
            assert time.monotonic() - start > 1
            going_on.join(10)
            assert [(peer.state, peer.since) for peer in port.peers()] == before

    @clause("5.9", needs=[PROCESSES, BLOCKING])
    def test_ffn_stops_and_goes_on(self) -> None:
        """Beyond timeout_s it is given up; its late answer is not used, and the same process serves again."""
        with self.group() as group, processes_of(group) as processes:
            group.limits(timeout_s=1.0, recovery_timeout_s=30.0)
            ffn = processes.ffn(serving=True)
            port = group.open_attention()
            group.forward(port, 1, 5, 3)
            ffn.stop()
            step = Step(2, Mode.EAGER, (5, 3))
            port.begin(step)
            going_on = threading.Timer(2.5, ffn.resume)
            going_on.start()
            start = time.monotonic()
            if self.can("reconnect"):
                group.exchange(port, step, 0)
            else:
                with pytest.raises((DeadlineExceeded, PeerLost)):
                    group.exchange(port, step, 0)
                assert time.monotonic() - start < 4
                port.close()
                port = group.open_attention()
            going_on.join(10)
            group.forward(port, 3, 5, 3)
            assert time.monotonic() - start < 20

    @clause("5.9", needs=[PROCESSES, BLOCKING])
    def test_ffn_stops_for_good(self) -> None:
        """The error then is the deadline's, and says that the heartbeat has ceased or that nobody answers."""
        with self.group() as group, processes_of(group) as processes:
            group.limits(timeout_s=1.0, recovery_timeout_s=2.0)
            ffn = processes.ffn(serving=True)
            port = group.open_attention()
            step = Step(2, Mode.EAGER, (5,))
            port.begin(step)
            group.exchange(port, step, 0)
            ffn.stop()
            start = time.monotonic()
            with pytest.raises((DeadlineExceeded, PeerLost), match="step 2, layer 1, stage 0"):
                group.exchange(port, step, 1)
            assert time.monotonic() - start < 10

    @clause("5.10", needs=[PROCESSES, BLOCKING])
    @pytest.mark.parametrize("seconds", [0.5, 2.5])
    def test_attention_stops_and_goes_on(self, seconds: float) -> None:
        """The others are served meanwhile. It goes on where it was, by itself within timeout_s or with "reconnect"."""
        with self.group(attention=2) as group, processes_of(group) as processes:
            group.limits(timeout_s=1.5, recovery_timeout_s=20.0)
            group.start_ffn()
            steady, sleeper = group.open_attention(1), processes.attention(0)
            sleeper.ask("begin", 1, 5)
            sleeper.ask("send", 0, 0)
            sleeper.ask("recv", 0, 0)
            sleeper.stop()
            start, seq = time.monotonic(), 0
            while time.monotonic() - start < seconds:
                before = time.monotonic()
                group.forward(steady, seq, 3)
                assert time.monotonic() - before < 1
                seq += 1
            sleeper.resume()
            if seconds < group.settings.timeout_s or self.can("reconnect"):
                for order in ("send", "recv"):
                    sleeper.ask(order, 1, 0)
            sleeper.end()
            group.forward(group.open_attention(0), 1, 4)
