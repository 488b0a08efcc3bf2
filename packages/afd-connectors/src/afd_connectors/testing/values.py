"""Clauses about values: what is sent arrives, is computed as it was sent, and comes back."""

from __future__ import annotations

import pytest
import torch

from afd_connectors.shape import DTYPE_BYTES
from afd_connectors.step import Mode, Step
from afd_connectors.testing.clauses import BLOCKING, Clauses, clause
from afd_connectors.testing.group import answer_of


class ValueClauses(Clauses):
    """Values."""

    @clause("1.1")
    @pytest.mark.parametrize("dtype", sorted(DTYPE_BYTES))
    def test_values_round_trip(self, dtype: str) -> None:
        """Rows of every dtype come back as the FFN computed them, bit for bit."""
        with self.group(dtype=dtype) as group:
            group.start_ffn()
            port = group.open_attention()
            for seq in range(3):
                group.forward(port, seq, 5)

    @clause("1.1")
    @pytest.mark.parametrize("dtype", sorted(DTYPE_BYTES))
    def test_bits_that_are_no_plain_numbers(self, dtype: str) -> None:
        """NaN with its payload, infinities, negative zero and the smallest numbers are carried, not computed with."""
        with self.group(dtype=dtype) as group:
            group.compute = lambda _rank, work: work.hidden.clone()
            group.start_ffn()
            port = group.open_attention()
            integer = torch.int32 if DTYPE_BYTES[dtype] == 4 else torch.int16
            limits = torch.iinfo(integer)
            bits = torch.randint(limits.min, limits.max, (16, 8), dtype=integer)
            odd = torch.tensor([float("nan"), float("inf"), float("-inf"), -0.0]).to(getattr(torch, dtype))
            bits[0, :4] = odd.view(integer)
            bits[1, :4] = torch.tensor([1, -1, limits.max, limits.min], dtype=integer)
            step = Step(1, Mode.EAGER, (16,))
            port.begin(step)
            out = group.rows(16)
            port.send(step, 0, bits.to(group.device).view(getattr(torch, dtype)))
            port.recv(step, 0, out)
            assert torch.equal(out.view(integer).cpu(), bits)

    @clause("1.2")
    def test_large_exchanges_in_both_stages(self) -> None:
        """Requests and answers larger than any buffer on the way cross each other without locking up."""
        with self.group(dtype="float32", tokens=4096, hidden=1024, layers=2) as group:
            group.start_ffn()
            port = group.open_attention()
            step = Step(1, Mode.EAGER, (4096, 4096))
            port.begin(step)
            sent = [group.rows(4096), group.rows(4096)]
            out = torch.empty_like(sent[0])
            for layer in range(2):
                for stage in (0, 1):
                    port.send(step, layer, sent[stage], stage=stage)
                for stage in (1, 0) if self.can(BLOCKING) else (0, 1):
                    port.recv(step, layer, out, stage=stage)
                    assert torch.equal(out, answer_of(sent[stage], layer, stage))

    @clause("1.3")
    def test_router_logits_travel(self) -> None:
        """Logits arrive with their rows, in the model's dtype or in float32, and may be left out.

        A transport without the feature refuses a shape that has them.
        """
        if not self.can("router"):
            with self.group(router=4) as group, pytest.raises(ValueError, match="router"):
                group.build("ffn")
            return
        with self.group(router=8) as group:
            group.start_ffn()
            port = group.open_attention()
            step = Step(1, Mode.EAGER, (6,))
            port.begin(step)
            kinds = (torch.bfloat16, torch.float32, None)
            for layer, kind in enumerate(kinds):
                hidden, out = group.rows(6), group.rows(6)
                router = None if kind is None else torch.randint(0, 4, (6, 8)).to(group.device, kind)
                port.send(step, layer, hidden, router)
                port.recv(step, layer, out)
                assert torch.equal(out, answer_of(hidden, layer, 0, router))

    @clause("1.4")
    def test_tensors_are_free_after_send(self) -> None:
        """The caller may overwrite what it sent, and may receive into the same memory."""
        with self.group() as group:
            group.start_ffn()
            port = group.open_attention()
            step = Step(1, Mode.EAGER, (4,))
            port.begin(step)
            hidden = group.rows(4)
            expected = answer_of(hidden, 0, 0)
            port.send(step, 0, hidden)
            hidden.zero_()
            port.recv(step, 0, hidden)
            assert torch.equal(hidden, expected)

    @clause("1.5")
    def test_strided_tensors(self) -> None:
        """Rows need not lie one after another, on either side; the FFN's do, and what is filled by enqueued calls."""
        with self.group() as group:
            group.compute = lambda _rank, work: answer_of(work.hidden, work.layer, work.stage).repeat(1, 2)[:, :8]
            group.start_ffn()
            port = group.open_attention()
            step = Step(1, Mode.EAGER, (4,))
            port.begin(step)
            hidden, out = group.rows(8)[::2], group.rows(8)[::2]
            port.send(step, 0, hidden)
            if not self.can(BLOCKING):
                with pytest.raises(ValueError, match="out must be contiguous"):
                    port.recv(step, 0, out)
                out = out.contiguous()
            port.recv(step, 0, out)
            assert torch.equal(out, answer_of(hidden, 0, 0))
            assert all(work.hidden.is_contiguous() for _, work, _ in group.works)

    @clause("1.6", needs=[BLOCKING])
    def test_rows_of_a_work_stay(self) -> None:
        """What the FFN computes from is not written by what arrives meanwhile, until it is answered."""
        with self.group(attention=2) as group, group.manual_ffn() as ffn:
            ports = [group.open_attention(rank) for rank in (0, 1)]
            step = Step(1, Mode.EAGER, (3, 3))
            sent = {(rank, stage): group.rows(3) for rank in (0, 1) for stage in (0, 1)}
            ports[0].begin(step)
            ports[0].send(step, 0, sent[0, 0], stage=0)
            first = group.take(ffn)
            ports[1].begin(step)
            for rank, stage in ((1, 0), (1, 1), (0, 1)):
                ports[rank].send(step, 0, sent[rank, stage], stage=stage)
            second = group.take(ffn, 1)
            assert torch.equal(first.hidden, sent[0, 0])
            ffn.send(second, second.hidden + 1)
            assert torch.equal(first.hidden, sent[0, 0])
            ffn.send(first, first.hidden + 1)
            third = group.take(ffn, 0)
            ffn.send(third, third.hidden + 1)
            out = group.rows(3)
            for rank, stage in ((0, 0), (1, 0)):
                ports[rank].recv(step, 0, out, stage=stage)
                assert torch.equal(out, sent[rank, stage] + 1)
