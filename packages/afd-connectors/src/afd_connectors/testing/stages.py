"""Clauses about stages and steps: which exchange an answer belongs to is never in doubt."""

from __future__ import annotations

import torch

from afd_connectors.step import Mode, Step
from afd_connectors.testing.clauses import BLOCKING, Clauses, clause
from afd_connectors.testing.group import answer_of


class StageClauses(Clauses):
    """Stages and steps."""

    @clause("2.1")
    def test_stages_do_not_mix(self) -> None:
        """Two exchanges in flight are told apart, whichever answer is asked for first, where that may be chosen."""
        with self.group() as group:
            group.start_ffn()
            port = group.open_attention()
            step = Step(1, Mode.EAGER, (3, 7))
            port.begin(step)
            for layer in range(group.shape.layers):
                sent = [group.rows(count) for count in step.tokens]
                for stage in (0, 1):
                    port.send(step, layer, sent[stage], stage=stage)
                for stage in (1, 0) if layer % 2 and self.can(BLOCKING) else (0, 1):
                    out = torch.empty_like(sent[stage])
                    port.recv(step, layer, out, stage=stage)
                    assert torch.equal(out, answer_of(sent[stage], layer, stage))

    @clause("2.1", needs=[BLOCKING])
    def test_stages_stand_at_different_layers(self) -> None:
        """One stage may be layers ahead of the other."""
        with self.group() as group:
            group.start_ffn()
            port = group.open_attention()
            step = Step(1, Mode.EAGER, (4, 4))
            port.begin(step)
            waiting, out = group.rows(4), group.rows(4)
            port.send(step, 0, waiting, stage=1)
            for layer in range(group.shape.layers):
                group.exchange(port, step, layer, stage=0)
            port.recv(step, 0, out, stage=1)
            assert torch.equal(out, answer_of(waiting, 0, 1))

    @clause("2.2", needs=[BLOCKING])
    def test_stage_can_be_asked_for(self) -> None:
        """FFNPort.recv(stage) gives that stage's exchange even when the other's came first."""
        with self.group() as group, group.manual_ffn() as ffn:
            attention = group.open_attention()
            step = Step(1, Mode.EAGER, (2, 4))
            attention.begin(step)
            for stage in (0, 1):
                attention.send(step, 0, group.rows(step.tokens[stage]), stage=stage)
            for stage in (1, 0):
                work = group.take(ffn, stage)
                assert (work.stage, work.hidden.shape[0]) == (stage, step.tokens[stage])
                ffn.send(work, work.hidden)
            for stage in (0, 1):
                attention.recv(step, 0, group.rows(step.tokens[stage]), stage=stage)

    @clause("2.3", needs=[BLOCKING])
    def test_one_work_per_stage(self) -> None:
        """While a work of a stage is out, the FFN gets no other of that stage; afterwards it does."""
        with self.group(attention=2) as group, group.manual_ffn() as ffn:
            ports = [group.open_attention(rank) for rank in (0, 1)]
            step = Step(1, Mode.EAGER, (2,))
            out = group.rows(2)
            for port in ports:
                port.begin(step)
            ports[0].send(step, 0, out)
            first = group.take(ffn)
            ports[1].send(step, 0, out)
            assert ffn.recv(wait_s=0.2) is None
            ffn.send(first, first.hidden)
            second = group.take(ffn)
            ffn.send(second, second.hidden)
            for port in ports:
                port.recv(step, 0, out)

    @clause("2.4")
    def test_counts_vary(self) -> None:
        """Steps differ in rows, down to none and up to the shape's bound, and in stages."""
        with self.group() as group:
            group.start_ffn()
            port = group.open_attention()
            for seq, tokens in enumerate([(1,), (16, 1), (0, 3), (16,), (0,), (0, 0), (2, 2)]):
                group.forward(port, seq, *tokens)
            assert all(rows > 0 for _, _, rows in group.works), "exchanges without rows are not computed"

    @clause("2.5", needs=[BLOCKING])
    def test_work_says_which_exchange_it_is(self) -> None:
        """Step, mode, layer and stage arrive as they were sent; layers may be left out."""
        with self.group(layers=9) as group, group.manual_ffn() as ffn:
            port = group.open_attention()
            for seq, mode in ((3, Mode.WARMUP), (2**40, Mode.EAGER)):
                step = Step(seq, mode, (1, 2))
                port.begin(step)
                for layer, stage in ((2, 1), (2, 0), (8, 1)):
                    port.send(step, layer, group.rows(step.tokens[stage]), stage=stage)
                    work = group.take(ffn)
                    assert (work.step, work.layer, work.stage) == (step, layer, stage)
                    ffn.send(work, work.hidden)
                    port.recv(step, layer, group.rows(step.tokens[stage]), stage=stage)
