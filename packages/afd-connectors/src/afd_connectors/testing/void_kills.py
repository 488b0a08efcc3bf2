"""Clauses about ranks that are killed or stand still while steps are enqueued, and repeating what is void then."""

from __future__ import annotations

import threading
import time

import pytest

from afd_connectors.errors import PeerLost
from afd_connectors.ports import AttentionPort
from afd_connectors.step import Mode, Step
from afd_connectors.stepped import DeviceAttentionPort
from afd_connectors.testing.clauses import PROCESSES, Clauses, clause
from afd_connectors.testing.group import Group, within
from afd_connectors.testing.processes import Child, processes_of
from afd_connectors.testing.void import lost_in

# What the FFN rank has done of a step's first layer when it is killed.
POINTS: dict[str, tuple[str, ...]] = {
    "step announced": (),
    "request taken": ("take",),
    "one stage answered": ("take", "answer"),
    "both answered": ("take", "answer", "take", "answer"),
}
MOST_VOID = 3


class VoidKillClauses(Clauses):
    """Steps that are void, by kill -9 and SIGSTOP."""

    @clause("10.8", needs=["graph", "reconnect", PROCESSES])
    @pytest.mark.parametrize("point", POINTS)
    def test_ffn_killed_under_enqueued_steps(self, point: str) -> None:
        """The step is void, and its successor serves the repeated one over the same port."""
        with self.group() as group, processes_of(group) as processes:
            victim = processes.ffn()
            port = group.open_attention()
            assert isinstance(port, DeviceAttentionPort)
            step = Step(1, Mode.EAGER, (5, 3))
            port.begin(step)
            failed: list[BaseException] = []

            def fate() -> None:
                try:
                    for order in POINTS[point]:
                        victim.ask(order)
                    time.sleep(0.1)
                    victim.kill()
                except BaseException as error:  # noqa: BLE001 - shown below on the test's thread
                    failed.append(error)

            killing = threading.Thread(target=fate, daemon=True)
            killing.start()
            start = time.monotonic()
            error = lost_in(group, port, step)
            killing.join(30)
            assert not failed, failed
            assert (error.role, error.rank, error.peer, error.step) == ("attention", 0, 0, 1)
            assert time.monotonic() - start < group.settings.timeout_s + 3
            processes.ffn(serving=True)
            port.rejoin()
            group.forward(port, 2, *step.tokens)

    @clause("10.8", needs=["graph", "reconnect", PROCESSES])
    def test_ffn_killed_again_and_again(self) -> None:
        """Of a stream of steps through which the FFN rank is killed at any moment, each comes back right in the end."""
        with self.group(layers=60) as group, processes_of(group) as processes:
            first = processes.ffn(serving=True)
            port = group.open_attention()
            failed: list[BaseException] = []

            def chaos(victim: Child) -> None:
                try:
                    for delay in (0.3, 0.23, 0.37):
                        time.sleep(delay)
                        victim.kill()
                        victim = processes.ffn(serving=True)
                except BaseException as error:  # noqa: BLE001 - shown below on the test's thread
                    failed.append(error)

            killing = threading.Thread(target=chaos, args=(first,), daemon=True)
            killing.start()
            seq = 1
            until = time.monotonic() + 60
            while killing.is_alive() and time.monotonic() < until:
                seq = group.repeated(port, seq, 5, 3) + 1
            killing.join(1)
            assert not killing.is_alive()
            assert not failed, failed
            group.repeated(port, seq, 5)

    @clause("10.9", needs=["graph", "reconnect", PROCESSES])
    def test_one_of_several_ffn_killed_under_enqueued_steps(self) -> None:
        """The connections to the others stay as they are, and they serve the repeated step."""
        with self.group(ffn=2) as group, processes_of(group) as processes:
            victim, _ = processes.ffn(0, serving=True), processes.ffn(1, serving=True)
            port = group.open_attention()
            assert isinstance(port, DeviceAttentionPort)
            group.forward(port, 1, 6)
            before = port.peers()[1]
            victim.kill()
            assert within(5, port.lost)
            assert [peer.state for peer in port.peers()] == ["lost", "connected"]
            processes.ffn(0, serving=True)
            port.rejoin()
            group.forward(port, 2, 6)
            after = port.peers()[1]
            assert (after.state, after.since) == (before.state, before.since)

    @clause("10.11", needs=["graph", "reconnect", PROCESSES])
    def test_ffn_stands_still_under_enqueued_steps(self) -> None:
        """Beyond timeout_s the step is void; the same process serves the repeated one, and no late answer counts."""
        with self.group() as group, processes_of(group) as processes:
            group.limits(timeout_s=1.0, recovery_timeout_s=30.0)
            ffn = processes.ffn(serving=True)
            port = group.open_attention()
            assert isinstance(port, DeviceAttentionPort)
            group.forward(port, 1, 5, 3)
            ffn.stop()
            step = Step(2, Mode.EAGER, (5, 3))
            start = time.monotonic()
            going_on = threading.Timer(3.0, ffn.resume)
            going_on.start()
            port.begin(step)
            lost_in(group, port, step)
            assert time.monotonic() - start < 3
            port.rejoin()
            going_on.join(10)
            group.repeated(port, 3, 5, 3)
            assert time.monotonic() - start < 20

    @clause("10.12", needs=["graph", "reconnect", PROCESSES])
    @pytest.mark.parametrize("point", ["no step", "step announced", "request sent"])
    def test_attention_killed_under_enqueued_steps(self, point: str) -> None:
        """Its peers are served at once, at most after a step that is void, and its replacement is let in."""
        with self.group(attention=2) as group, processes_of(group) as processes:
            group.start_ffn()
            steady, victim = group.open_attention(1), processes.attention(0)
            group.forward(steady, 1, 3)
            if point != "no step":
                victim.ask("begin", 1, 4)
            if point == "request sent":
                victim.ask("send", 0, 0)
            killing = threading.Timer(0.3, victim.kill)
            killing.start()
            start = time.monotonic()
            seq = 2
            while killing.is_alive() or seq == 2:
                seq = _soon(group, steady, seq) + 1
            assert time.monotonic() - start < group.settings.timeout_s
            _soon(group, steady, seq)
            group.forward(group.open_attention(0), 1, 5)

    @clause("10.12", needs=["graph", "reconnect", PROCESSES])
    def test_attention_stands_still_in_an_enqueued_step(self) -> None:
        """Its peers go on without it once it has been silent for timeout_s, and it repeats its step when it goes on."""
        with self.group(attention=2) as group, processes_of(group) as processes:
            group.limits(timeout_s=1.0, recovery_timeout_s=20.0)
            group.start_ffn()
            steady, sleeper = group.open_attention(1), processes.attention(0)
            sleeper.ask("begin", 1, 5)
            sleeper.stop()
            start = time.monotonic()
            seq = group.repeated(steady, 1, 3)
            assert time.monotonic() - start < 3 * group.settings.timeout_s + 1
            time.sleep(1.0)
            start = time.monotonic()
            group.forward(steady, seq + 1, 3)
            assert time.monotonic() - start < 1
            sleeper.resume()
            time.sleep(0.5)  # until it has seen that it was given up
            sleeper.ask("repeat", 5)

    @clause("10.10", needs=["graph", PROCESSES])
    def test_ffn_killed_for_good_under_enqueued_steps(self) -> None:
        """The step's error comes in time and says what died and where; the port calls the peer lost."""
        with self.group() as group, processes_of(group) as processes:
            group.limits(timeout_s=2.0, recovery_timeout_s=1.5)
            victim = processes.ffn()
            port = group.open_attention()
            step = Step(7, Mode.EAGER, (5, 3))
            port.begin(step)
            killing = threading.Timer(0.3, victim.kill)
            killing.start()
            start = time.monotonic()
            error = lost_in(group, port, step)
            assert time.monotonic() - start < 6
            killing.join(10)
            assert (error.step, error.peer) == (7, 0)
            assert [peer.state for peer in port.peers()] == ["lost"]
            if self.can("reconnect"):
                assert isinstance(port, DeviceAttentionPort)
                with pytest.raises(PeerLost, match=r"within 1.5 s"):
                    port.rejoin()


def _soon(group: Group, port: AttentionPort, seq: int) -> int:
    """A step that is repeated at most MOST_VOID times; the last seq."""
    last = group.repeated(port, seq, 3)
    assert last - seq <= MOST_VOID
    return last
