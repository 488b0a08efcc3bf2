"""Clauses about exchanges at the wrong time or of the wrong size: refused where they begin, or without effect."""

from __future__ import annotations

import threading

import pytest
import torch

from afd_connectors.ports import Work
from afd_connectors.step import Mode, Step
from afd_connectors.testing.clauses import BLOCKING, Clauses, clause
from afd_connectors.testing.group import answer_of, within


class FrameClauses(Clauses):
    """Frames."""

    @clause("8.1", needs=[BLOCKING])
    def test_early(self) -> None:
        """Nothing is sent before its step has begun, nothing received before it was sent."""
        with self.group() as group:
            group.start_ffn()
            port = group.open_attention()
            step = Step(5, Mode.EAGER, (3, 2))
            with pytest.raises(ValueError, match="begin"):
                port.send(step, 0, group.rows(3))
            port.begin(step)
            with pytest.raises(ValueError, match="begin"):
                port.send(Step(6, Mode.EAGER, (3,)), 0, group.rows(3))
            with pytest.raises(ValueError, match="send"):
                port.recv(step, 0, group.rows(3))
            port.send(step, 0, group.rows(3))
            for layer, stage in ((1, 0), (0, 1)):
                with pytest.raises(ValueError, match="send"):
                    port.recv(step, layer, group.rows(step.tokens[stage]), stage=stage)
            port.recv(step, 0, group.rows(3))
            group.forward(port, 6, 3)
            assert len(group.works) == 1 + group.shape.layers

    @clause("8.2", needs=[BLOCKING])
    def test_late(self) -> None:
        """A step that is over takes no more exchanges, and no step begins twice."""
        with self.group() as group:
            group.start_ffn()
            port = group.open_attention()
            old, step = Step(5, Mode.EAGER, (3,)), Step(6, Mode.EAGER, (3,))
            for now in (old, step):
                port.begin(now)
                group.exchange(port, now, 0)
            for again in (step, old):
                with pytest.raises(ValueError, match="larger"):
                    port.begin(again)
            with pytest.raises(ValueError, match="begin"):
                port.send(old, 1, group.rows(3))
            group.exchange(port, step, 1)

    @clause("8.2", needs=[BLOCKING])
    def test_late_answers_are_passed_over(self) -> None:
        """Answers of a step that was left in the middle are never taken for those of the next."""
        with self.group() as group:
            began = threading.Event()

            def compute(_rank: int, work: Work) -> torch.Tensor:
                assert work.step.seq == 2 or began.wait(10)
                return work.hidden + work.step.seq * 10

            group.compute = compute
            group.start_ffn()
            port = group.open_attention()
            old, step = Step(1, Mode.EAGER, (3,)), Step(2, Mode.EAGER, (3,))
            port.begin(old)
            port.send(old, 0, group.rows(3))
            assert within(5, lambda: bool(group.works))
            port.begin(step)
            sent, out = group.rows(3), group.rows(3)
            port.send(step, 0, sent)
            began.set()
            port.recv(step, 0, out)
            assert torch.equal(out, sent + 20)

    @clause("8.2", needs=[BLOCKING])
    def test_late_answers_do_not_reach_a_replacement(self) -> None:
        """Neither does the successor of a rank get what its predecessor asked for."""
        with self.group() as group, group.manual_ffn() as ffn:
            first = group.open_attention()
            step = Step(1, Mode.EAGER, (3,))
            first.begin(step)
            first.send(step, 0, group.rows(3))
            late = group.take(ffn)
            first.close()
            port = group.open_attention()
            port.begin(step)
            sent, out = group.rows(3), group.rows(3)
            port.send(step, 0, sent)
            ffn.send(late, late.hidden + 50)
            work = group.take(ffn)
            ffn.send(work, work.hidden + 1)
            port.recv(step, 0, out)
            assert torch.equal(out, sent + 1)

    @clause("8.2", needs=[BLOCKING])
    def test_step_that_was_given_up(self) -> None:
        """A step may be left with an exchange open; the next one is served."""
        with self.group() as group:
            group.start_ffn()
            port = group.open_attention()
            step = Step(1, Mode.EAGER, (3, 3))
            port.begin(step)
            for stage in (0, 1):
                port.send(step, 0, group.rows(3), stage=stage)
            port.recv(step, 0, group.rows(3), stage=1)
            group.forward(port, 2, 3)

    @clause("8.3", needs=[BLOCKING])
    def test_duplicates(self) -> None:
        """An open exchange is not sent again, an answer is had once and given once."""
        with self.group() as group, group.manual_ffn() as ffn:
            port = group.open_attention()
            step = Step(5, Mode.EAGER, (3,))
            port.begin(step)
            sent, out = group.rows(3), group.rows(3)
            port.send(step, 0, sent)
            for layer in (0, 1):
                with pytest.raises(ValueError, match="without answer"):
                    port.send(step, layer, group.rows(3))
            work = group.take(ffn)
            ffn.send(work, work.hidden + 1)
            with pytest.raises(ValueError, match="answer"):
                ffn.send(work, work.hidden + 2)
            port.recv(step, 0, out)
            assert torch.equal(out, sent + 1)
            with pytest.raises(ValueError, match="send"):
                port.recv(step, 0, out)
            assert ffn.recv(wait_s=0.1) is None

    @clause("8.3", needs=[BLOCKING])
    def test_work_of_another_port(self) -> None:
        """A port answers only works that it gave."""
        with self.group(ffn=2) as group, group.manual_ffn(0) as ffn, group.manual_ffn(1) as other:
            port = group.open_attention()
            step = Step(5, Mode.EAGER, (4,))
            port.begin(step)
            sent, out = group.rows(4), group.rows(4)
            port.send(step, 0, sent)
            works = [group.take(ffn), group.take(other)]
            for wrong in (works[0], works[1]._replace(ticket="no ticket")):
                with pytest.raises(ValueError, match=r"work|answer"):
                    other.send(wrong, wrong.hidden)
            for end, work in zip((ffn, other), works, strict=True):
                end.send(work, work.hidden + 1)
            port.recv(step, 0, out)
            assert torch.equal(out, sent + 1)

    @clause("8.4", needs=[BLOCKING])
    def test_out_of_order(self) -> None:
        """Layers that do not ascend are refused with a ValueError or answered right; the port stays of use."""
        with self.group() as group:
            group.start_ffn()
            port = group.open_attention()
            step = Step(5, Mode.EAGER, (3, 2))
            port.begin(step)
            group.exchange(port, step, 1)
            for layer in (0, 1):
                hidden, out = group.rows(3), group.rows(3)
                try:
                    port.send(step, layer, hidden)
                except ValueError:
                    continue
                port.recv(step, layer, out)
                assert torch.equal(out, answer_of(hidden, layer, 0))
            group.exchange(port, step, 0, stage=1)
            group.exchange(port, step, 2)
            group.forward(port, 6, 3)

    @clause("8.5", needs=[BLOCKING])
    def test_oversize(self) -> None:
        """More rows, stages or layers than the shape has room for are refused before anything is sent."""
        with self.group(stages=1) as group:
            group.start_ffn()
            port = group.open_attention()
            with pytest.raises(ValueError, match="17 rows"):
                port.begin(Step(1, Mode.EAGER, (17,)))
            with pytest.raises(ValueError, match="2 stages"):
                port.begin(Step(1, Mode.EAGER, (1, 1)))
            step = Step(1, Mode.EAGER, (16,))
            port.begin(step)
            for layer, stage in ((3, 0), (-1, 0), (0, 1), (0, -1)):
                with pytest.raises(ValueError, match="layer and stage"):
                    port.send(step, layer, group.rows(16), stage=stage)
            with pytest.raises(ValueError, match=r"\[17, 8\]"):
                port.send(step, 0, group.rows(17))
            group.exchange(port, step, 2)
            assert len(group.works) == 1
