"""Clauses about FFN ranks that are killed: at every point of an exchange, one of several, once and for good."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from torch import Tensor

from afd_connectors.errors import DeadlineExceeded, PeerLost
from afd_connectors.ports import AttentionPort
from afd_connectors.step import Mode, Step
from afd_connectors.testing.clauses import BLOCKING, PROCESSES, Clauses, clause
from afd_connectors.testing.group import Group, answer_of
from afd_connectors.testing.processes import Child, Processes, processes_of

ON_ITS_WAY = {"tokens": 4096, "hidden": 1024}  # 16 MiB in float32, which no buffer on the way takes whole
# What the FFN rank has done of an exchange of both stages when it is killed.
FFN_POINTS = {
    "before its step": (),
    "step announced": (),
    "request on its way": (),
    "request taken": ("take",),
    "answer awaited": ("take",),
    "both taken": ("take", "take"),
    "one stage answered": ("take", "answer"),
    "answer on its way": ("take", "answer"),
    "both answered": ("take", "answer", "take", "answer"),
}


class KillClauses(Clauses):
    """Failure of FFN ranks, by kill -9."""

    @clause("5.4", needs=[PROCESSES, BLOCKING])
    @pytest.mark.parametrize("point", FFN_POINTS)
    def test_ffn_killed(self, point: str) -> None:
        """With "reconnect" its successor finishes the exchange; without it the error comes within timeout_s."""
        large = "on its way" in point
        rows = (4096,) if large else (5, 3)
        sizes = ON_ITS_WAY if large else {}
        with self.group(dtype="float32", **sizes) as group, processes_of(group) as processes:
            ffn = processes.ffn()
            port = group.open_attention()
            step = Step(1, Mode.EAGER, rows)
            fate = _Fate(processes, ffn, FFN_POINTS[point])
            if point == "before its step":
                fate.meet()
            port.begin(step)
            if point == "step announced":
                fate.meet()
            sent = [group.rows(count) for count in rows]
            if not fate.met.is_set():
                fate.start()
            for stage, hidden in enumerate(sent):
                port.send(step, 0, hidden, stage=stage)
            if point != "answer awaited":
                assert fate.met.wait(30)
            self._finish(group, port, step, sent)
            assert fate.met.wait(30)
            assert not fate.failed, fate.failed

    def _finish(self, group: Group, port: AttentionPort, step: Step, sent: list[Tensor]) -> None:
        start = time.monotonic()
        lost: PeerLost | DeadlineExceeded | None = None
        try:
            for stage, hidden in enumerate(sent):
                out = torch.empty_like(hidden)
                port.recv(step, 0, out, stage=stage)
                assert torch.equal(out, answer_of(hidden, 0, stage))
        except (PeerLost, DeadlineExceeded) as error:
            if self.can("reconnect"):
                raise
            lost = error
        if lost is not None:
            assert (lost.role, lost.rank, lost.peer, lost.step, lost.layer) == ("attention", 0, 0, 1, 0)
            assert time.monotonic() - start < group.settings.timeout_s + 3
        if not self.can("reconnect"):
            port.close()
            port = group.open_attention()
        group.forward(port, 2, *step.tokens)

    @clause("5.4", needs=[PROCESSES, BLOCKING, "reconnect"])
    def test_ffn_killed_at_any_moment(self) -> None:
        """Of a long stream of exchanges through which the FFN rank is killed again and again, all come back right."""
        with self.group(layers=150) as group, processes_of(group) as processes:
            ffn = processes.ffn(serving=True)
            port = group.open_attention()
            failed: list[BaseException] = []
            over = threading.Event()

            def chaos(victim: Child) -> None:
                try:
                    for delay in (0.1, 0.13, 0.17):
                        time.sleep(delay)
                        victim.kill()
                        victim = processes.ffn(serving=True)
                        if over.is_set():
                            return
                except BaseException as error:  # noqa: BLE001 - raised below on the test's thread
                    failed.append(error)

            killing = threading.Thread(target=chaos, args=(ffn,), daemon=True)
            killing.start()
            seq = 1
            while killing.is_alive() and seq < 50:
                group.forward(port, seq, 5, 3)
                seq += 1
            over.set()
            killing.join(60)
            assert not failed, failed
            group.forward(port, seq, 5)

    @clause("5.5", needs=[PROCESSES, BLOCKING, "reconnect"])
    def test_one_of_several_ffn_killed(self) -> None:
        """Only its part of an exchange is sent again; FFN ranks that have answered are not asked twice."""
        with self.group(ffn=2) as group, processes_of(group) as processes:
            victim, other = processes.ffn(0), processes.ffn(1)
            port = group.open_attention()
            step = Step(1, Mode.EAGER, (6,))
            port.begin(step)
            hidden, out = group.rows(6), group.rows(6)
            port.send(step, 0, hidden)
            for child, order in ((victim, "take"), (other, "take"), (other, "answer")):
                child.ask(order)
            victim.kill()
            processes.ffn(0, serving=True)
            port.recv(step, 0, out)
            assert torch.equal(out, answer_of(hidden, 0, 0))
            other.ask("expect_nothing")
            other.tell("serve")
            group.exchange(port, step, 1)

    @clause("5.6", needs=[PROCESSES, BLOCKING])
    def test_ffn_killed_for_good(self) -> None:
        """The wait ends, within recovery_timeout_s where there is recovery, and says what died, where and when."""
        with self.group() as group, processes_of(group) as processes:
            group.limits(timeout_s=2.0, recovery_timeout_s=1.5)
            ffn = processes.ffn()
            port = group.open_attention()
            step = Step(7, Mode.EAGER, (5, 3))
            port.begin(step)
            port.send(step, 2, group.rows(3), stage=1)
            ffn.ask("take")
            ffn.kill()
            start = time.monotonic()
            with pytest.raises((PeerLost, DeadlineExceeded)) as caught:
                port.recv(step, 2, group.rows(3), stage=1)
            assert time.monotonic() - start < 6
            error = caught.value
            assert (error.step, error.layer, error.stage, error.peer) == (7, 2, 1, 0)
            if self.can("reconnect"):
                with pytest.raises(PeerLost, match=r"lost at \d\d:\d\d:\d\d because .* within 1.5 s.*step 7, layer 2"):
                    raise error
            assert [peer.state for peer in port.peers()] == ["lost"]


class _Fate:
    """Ends an FFN rank after some orders and starts its successor."""

    def __init__(self, processes: Processes, victim: Child, orders: tuple[str, ...]) -> None:
        self._processes, self._victim, self._orders = processes, victim, orders
        self.met = threading.Event()
        self.failed: list[BaseException] = []

    def start(self) -> None:
        """Meets it on another thread."""
        threading.Thread(target=self.meet, daemon=True).start()

    def meet(self) -> None:
        """Ends the victim; a moment later the successor serves."""
        try:
            for order in self._orders:
                self._victim.ask(order)
            time.sleep(0.2)  # for what is on its way, or waits, to do so
            self._victim.kill()
            self._processes.ffn(serving=True)
        except BaseException as error:  # noqa: BLE001 - shown by the test on its own thread
            self.failed.append(error)
        self.met.set()
