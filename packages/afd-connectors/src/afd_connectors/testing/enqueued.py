"""Clauses about ports whose calls only enqueue: what they do in the place of what calls with results do."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from afd_connectors.errors import ConnectorError
from afd_connectors.ports import Work
from afd_connectors.step import Mode, Step
from afd_connectors.stepped import DeviceAttentionPort, SteppedFFNPort
from afd_connectors.testing.clauses import Clauses, clause
from afd_connectors.testing.device import settle
from afd_connectors.testing.group import answer_of
from afd_connectors.testing.silenced import Silenced


class EnqueuedClauses(Clauses):
    """Calls that only enqueue, while all ranks live."""

    @clause("10.1", needs=["graph"])
    def test_works_come_in_the_order_of_the_step(self) -> None:
        """Each says its step, mode, layer and stage; no stage can be asked for by itself."""
        with self.group() as group, group.manual_ffn() as ffn:
            port = group.open_attention()
            assert isinstance(port, DeviceAttentionPort)
            assert isinstance(ffn, SteppedFFNPort)
            with pytest.raises(ValueError, match="stage 1"):
                ffn.recv(1, wait_s=0.1)
            for seq, mode in ((3, Mode.WARMUP), (2**40, Mode.EAGER)):
                step = Step(seq, mode, (1, 2))
                port.begin(step)
                for layer in range(group.shape.layers):
                    for stage in (0, 1):
                        rows, out = group.rows(step.tokens[stage]), group.rows(step.tokens[stage])
                        port.send(step, layer, rows, stage=stage)
                        work = group.take(ffn)
                        assert (work.step, work.layer, work.stage) == (step, layer, stage)
                        ffn.send(work, answer_of(work.hidden, layer, stage))
                        port.recv(step, layer, out, stage=stage)
                        assert torch.equal(out, answer_of(rows, layer, stage))

    @clause("10.2", needs=["graph"])
    def test_rows_of_an_enqueued_work_stay(self) -> None:
        """What is computed from is not written by the other stage's rows, until it is answered."""
        with self.group() as group, group.manual_ffn() as ffn:
            port = group.open_attention()
            step = Step(1, Mode.EAGER, (3, 3))
            port.begin(step)
            sent = [group.rows(3) for _ in step.tokens]
            port.send(step, 0, sent[0], stage=0)
            first = group.take(ffn)
            port.send(step, 0, sent[1], stage=1)
            second = group.take(ffn)
            assert torch.equal(first.hidden, sent[0])
            assert torch.equal(second.hidden, sent[1])
            for work in (first, second):
                ffn.send(work, work.hidden + 1)
            for stage in (0, 1):
                out = group.rows(3)
                port.recv(step, 0, out, stage=stage)
                assert torch.equal(out, sent[stage] + 1)

    @clause("10.3", needs=["graph"])
    def test_a_rank_without_rows_holds_nobody_up(self) -> None:
        """One that never came, has no step or one without rows is not waited for."""
        with self.group(attention=4) as group:
            group.start_ffn()
            ports = [group.open_attention(rank) for rank in range(3)]
            ports[1].begin(Step(1, Mode.EAGER, (0,)))
            start = time.monotonic()
            group.forward(ports[0], 1, 4)
            assert time.monotonic() - start < group.settings.timeout_s / 2

    @clause("10.4", needs=["graph"])
    def test_wrong_calls_enqueue_nothing(self) -> None:
        """Early, late, twice and too large are ValueErrors, and the step goes on as if they had not been."""
        with self.group(stages=1) as group:
            group.start_ffn()
            port = group.open_attention()
            step, old = Step(5, Mode.EAGER, (16,)), Step(4, Mode.EAGER, (3,))
            with pytest.raises(ValueError, match="begin"):
                port.send(step, 0, group.rows(16))
            for wrong, told in ((Step(4, Mode.EAGER, (17,)), "17 rows"), (Step(4, Mode.EAGER, (1, 1)), "2 stages")):
                with pytest.raises(ValueError, match=told):
                    port.begin(wrong)
            group.forward(port, old.seq, *old.tokens)
            port.begin(step)
            for again in (step, old):
                with pytest.raises(ValueError, match="larger"):
                    port.begin(again)
            with pytest.raises(ValueError, match="begin"):
                port.send(old, 0, group.rows(3))
            with pytest.raises(ValueError, match="send"):
                port.recv(step, 0, group.rows(16))
            for layer, stage in ((3, 0), (-1, 0), (0, 1), (0, -1)):
                with pytest.raises(ValueError, match="layer and stage"):
                    port.send(step, layer, group.rows(16), stage=stage)
            with pytest.raises(ValueError, match=r"\[17, 8\]"):
                port.send(step, 0, group.rows(17))
            rows, out = group.rows(16), group.rows(16)
            port.send(step, 0, rows)
            for layer in (0, 1):
                with pytest.raises(ValueError, match="without answer"):
                    port.send(step, layer, rows)
            port.recv(step, 0, out)
            assert torch.equal(out, answer_of(rows, 0, 0))
            with pytest.raises(ValueError, match="send"):
                port.recv(step, 0, out)
            for layer in range(1, group.shape.layers):
                group.exchange(port, step, layer)
            group.forward(port, 6, 3)

    @clause("10.4", needs=["graph"])
    def test_only_works_of_the_port_are_answered(self) -> None:
        """The right answer is taken after a wrong one was refused."""
        with self.group() as group, group.manual_ffn() as ffn:
            port = group.open_attention()
            step = Step(5, Mode.EAGER, (4,))
            port.begin(step)
            sent, out = group.rows(4), group.rows(4)
            port.send(step, 0, sent)
            work = group.take(ffn)
            for wrong in (work._replace(ticket="no ticket"), work._replace(layer=1)):
                with pytest.raises(ValueError, match="work"):
                    ffn.send(wrong, work.hidden)
            ffn.send(work, work.hidden + 1)
            with pytest.raises(ValueError, match="work"):
                ffn.send(work, work.hidden + 2)
            port.recv(step, 0, out)
            assert torch.equal(out, sent + 1)
            port.send(step, 1, sent)
            with self.group() as others, others.manual_ffn() as other, pytest.raises(ValueError, match="work"):
                other.send(group.take(ffn), sent)

    @clause("10.5", needs=["graph"])
    def test_answers_to_a_rank_that_left_reach_nobody_else(self) -> None:
        """Its replacement gets what it asked for itself, however late its predecessor is answered."""
        with self.group() as group:
            taken, joined = threading.Event(), threading.Event()

            def compute(_rank: int, work: Work) -> torch.Tensor:
                if not joined.is_set():
                    taken.set()
                    assert joined.wait(20)
                    return work.hidden + 50
                return answer_of(work.hidden, work.layer, work.stage)

            group.compute = compute
            group.start_ffn()
            first = group.open_attention()
            step = Step(1, Mode.EAGER, (3,))
            first.begin(step)
            first.send(step, 0, group.rows(3))
            assert taken.wait(10)
            first.close()
            port = group.open_attention()
            joined.set()
            group.forward(port, 1, 3)

    @clause("10.13", needs=["graph"])
    def test_closing_ends_waits_of_the_device(self) -> None:
        """From another thread, at once and on both sides, though the FFN rank says nothing."""
        with self.group() as group:
            group.limits(timeout_s=30.0, recovery_timeout_s=30.0)
            held = Silenced(group)
            group.start_ffn()
            port = group.open_attention()
            assert isinstance(port, DeviceAttentionPort)
            step = Step(1, Mode.EAGER, (2,))
            port.begin(step)
            port.send(step, 0, group.rows(2))
            assert held.taken.wait(5)
            start = time.monotonic()
            closing = threading.Timer(0.3, port.close)
            closing.start()
            port.recv(step, 0, group.rows(2))
            check = port.witness()
            settle(group.device)
            closing.join(10)
            assert time.monotonic() - start < 8
            with pytest.raises(ConnectorError):
                check()
            held.end()
            group.forward(group.open_attention(), 1, 3)
