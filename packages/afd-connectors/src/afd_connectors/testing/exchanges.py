"""Clauses about values: what is sent arrives, at the right place, in every topology."""

from __future__ import annotations

import threading

import pytest
import torch

from afd_connectors.checks import DTYPE_CODES
from afd_connectors.step import Mode, Step
from afd_connectors.testing.clauses import Clauses
from afd_connectors.testing.group import answer_of


class ExchangeClauses(Clauses):
    """Values."""

    @pytest.mark.parametrize("dtype", sorted(DTYPE_CODES))
    def test_values_round_trip(self, dtype: str) -> None:
        """Rows of every dtype come back as the FFN computed them, bit for bit."""
        with self.group(dtype=dtype) as group:
            group.start_ffn()
            port = group.open_attention()
            for seq in range(3):
                group.forward(port, seq, 5)

    def test_stages_do_not_mix(self) -> None:
        """Two exchanges in flight are told apart, whichever answer is asked for first."""
        with self.group() as group:
            group.start_ffn()
            port = group.open_attention()
            step = Step(1, Mode.EAGER, (3, 7))
            port.begin(step)
            for layer in range(group.shape.layers):
                sent = [group.rows(count) for count in step.tokens]
                for stage in (0, 1):
                    port.send(step, layer, sent[stage], stage=stage)
                for stage in (1, 0) if layer % 2 else (0, 1):
                    out = torch.empty_like(sent[stage])
                    port.recv(step, layer, out, stage=stage)
                    assert torch.equal(out, answer_of(sent[stage], layer, stage))

    def test_stage_can_be_asked_for(self) -> None:
        """FFNPort.recv(stage) gives that stage's exchange even when the other's came first."""
        with self.group() as group:
            port = group.build("ffn").open_ffn()
            try:
                attention = group.open_attention()
                step = Step(1, Mode.EAGER, (2, 4))
                attention.begin(step)
                for stage in (0, 1):
                    attention.send(step, 0, group.rows(step.tokens[stage]), stage=stage)
                for stage in (1, 0):
                    work = port.recv(stage, wait_s=5.0)
                    assert work is not None
                    assert (work.stage, work.hidden.shape[0]) == (stage, step.tokens[stage])
                    port.send(work, work.hidden)
                for stage in (0, 1):
                    attention.recv(step, 0, group.rows(step.tokens[stage]), stage=stage)
            finally:
                port.close()

    def test_counts_vary(self) -> None:
        """Steps differ in rows, down to none and up to the shape's bound, and in stages."""
        with self.group() as group:
            group.start_ffn()
            port = group.open_attention()
            for seq, tokens in enumerate([(1,), (16, 1), (0, 3), (16,), (0,), (2, 2)]):
                group.forward(port, seq, *tokens)
            assert all(rows > 0 for _, _, rows in group.works), "exchanges without rows are not computed"

    def test_router_logits_travel(self) -> None:
        """Logits arrive with their rows, in the model's dtype or in float32, and may be left out.

        A transport without the feature refuses a shape that has them.
        """
        if "router" not in self.connector().features:
            with self.group(router=4) as group, pytest.raises(ValueError, match="router"):
                group.build("ffn")
            return
        with self.group(router=4) as group:
            group.start_ffn()
            port = group.open_attention()
            step = Step(1, Mode.EAGER, (6,))
            port.begin(step)
            kinds = (torch.bfloat16, torch.float32, None)
            for layer, kind in enumerate(kinds):
                hidden, out = group.rows(6), group.rows(6)
                router = None if kind is None else torch.randint(0, 4, (6, 4)).to(kind)
                port.send(step, layer, hidden, router)
                port.recv(step, layer, out)
                assert torch.equal(out, answer_of(hidden, layer, 0, router))

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

    def test_strided_tensors(self) -> None:
        """Rows need not lie one after another."""
        with self.group() as group:
            group.start_ffn()
            port = group.open_attention()
            step = Step(1, Mode.EAGER, (4,))
            port.begin(step)
            hidden, out = group.rows(8)[::2], group.rows(8)[::2]
            port.send(step, 0, hidden)
            port.recv(step, 0, out)
            assert torch.equal(out, answer_of(hidden, 0, 0))

    @pytest.mark.parametrize(("attention", "ffn"), [(2, 1), (3, 1), (3, 2), (2, 2)])
    def test_fan_in(self, attention: int, ffn: int) -> None:
        """Attention ranks that share FFN ranks, each at its own pace, get their own rows back."""
        with self.group(attention=attention, ffn=ffn) as group:
            group.start_ffn()
            ports = [group.open_attention(rank) for rank in range(attention)]
            failed: list[BaseException] = []

            def drive(rank: int) -> None:
                try:
                    for seq in range(6):
                        group.forward(ports[rank], seq, 1 + (rank * 5 + seq) % 7, rank)
                except BaseException as error:  # noqa: BLE001 - raised below on the test's thread
                    failed.append(error)

            threads = [threading.Thread(target=drive, args=(rank,), daemon=True) for rank in range(attention)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30.0)
            assert not failed, failed
            assert not any(thread.is_alive() for thread in threads)

    def test_peers_at_one_layer_are_computed_together(self) -> None:
        """Rows that wait at the same layer make one work, in the order of the ranks."""
        with self.group(attention=2) as group:
            ports = {}
            ffn = group.build("ffn").open_ffn()
            try:
                sent = {}
                for rank, count in ((1, 3), (0, 2)):
                    ports[rank] = group.open_attention(rank)
                    step = Step(1, Mode.EAGER, (count,))
                    sent[rank] = group.rows(count)
                    ports[rank].begin(step)
                    ports[rank].send(step, 0, sent[rank])
                work = ffn.recv(wait_s=5.0)
                assert work is not None, "expected one work with the rows of both ranks"
                assert torch.equal(work.hidden, torch.cat([sent[0], sent[1]]))
                ffn.send(work, work.hidden + 1)
                for rank, rows in sent.items():
                    out = torch.empty_like(rows)
                    ports[rank].recv(Step(1, Mode.EAGER, (rows.shape[0],)), 0, out)
                    assert torch.equal(out, rows + 1)
            finally:
                ffn.close()

    def test_an_idle_peer_holds_nobody_up(self) -> None:
        """A rank that is connected but has no step, or has one without rows, is not waited for."""
        with self.group(attention=3) as group:
            group.start_ffn()
            ports = [group.open_attention(rank) for rank in range(3)]
            ports[1].begin(Step(1, Mode.EAGER, (0,)))
            group.forward(ports[0], 1, 4)

    @pytest.mark.parametrize(("attention", "ffn"), [(1, 2), (1, 3), (2, 3)])
    def test_fan_out(self, attention: int, ffn: int) -> None:
        """A rank with several FFN ranks gives each a block and gets its rows back in order; empty blocks
        stay.
        """
        with self.group(attention=attention, ffn=ffn) as group:
            group.start_ffn()
            for rank in range(attention):
                port = group.open_attention(rank)
                for seq, tokens in enumerate([(7,), (1,), (16, 2), (0, 1)]):
                    group.forward(port, seq, *tokens)
            assert {rank for rank, _, _ in group.works} == set(range(ffn))
