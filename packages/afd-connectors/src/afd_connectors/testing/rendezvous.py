"""Clauses about meeting: any order of starts, refusals on both sides with both values, one holder per rank."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace

import pytest

from afd_connectors.errors import DeadlineExceeded, HandshakeRefused
from afd_connectors.step import Mode, Step
from afd_connectors.testing.clauses import Clauses, clause
from afd_connectors.testing.group import within


class RendezvousClauses(Clauses):
    """Rendezvous."""

    @clause("4.1")
    def test_attention_may_start_first(self) -> None:
        """The attention rank waits for an FFN rank that comes later."""
        with self.group() as group:
            late = threading.Timer(0.5, group.start_ffn)
            late.start()
            port = group.open_attention()
            late.join()
            group.forward(port, 1, 3)

    @clause("4.1")
    def test_ffn_ranks_start_in_any_order(self) -> None:
        """An attention rank with several FFN ranks waits for all of them, whichever comes last."""
        with self.group(ffn=3) as group:
            group.start_ffn(2, 0)
            late = threading.Timer(0.5, group.start_ffn, (1,))
            late.start()
            port = group.open_attention()
            late.join()
            group.forward(port, 1, 7)

    @clause("4.2")
    def test_missing_ffn_is_named(self, caplog: pytest.LogCaptureFixture) -> None:
        """Without an FFN rank the wait is logged and ends with a sentence that names it and the time."""
        caplog.set_level(logging.INFO, "afd.connectors")
        with self.group(attention=2, ffn=2) as group:
            group.limits(join_timeout_s=1.5)
            start = time.monotonic()
            with pytest.raises(
                DeadlineExceeded, match=r"attention rank 1 did not reach FFN rank 1 at .* within 1.5 s"
            ) as late:
                group.open_attention(1)
            assert time.monotonic() - start < 10
            assert (late.value.transport, late.value.rank, late.value.peer) == (self.connector().name, 1, 1)
            assert "attention rank 1 waits for FFN rank 1 at 127.0.0.1" in caplog.text

    @clause("4.3")
    def test_mismatched_facts_refuse_both_sides(self, caplog: pytest.LogCaptureFixture) -> None:
        """Both sides say the field and both values; the FFN rank goes on serving others."""
        with self.group(attention=2) as group:
            group.start_ffn()
            other = replace(group.facts, model_digest="another model")
            with pytest.raises(HandshakeRefused, match=r"model_digest.*'another model'.*'suite'"):
                group.open_attention(0, facts=other)
            assert within(5, lambda: "'another model', FFN has 'suite'" in caplog.text)
            group.forward(group.open_attention(1), 1, 3)
            group.forward(group.open_attention(0), 1, 3)

    @clause("4.4")
    @pytest.mark.parametrize(("attention", "ffn"), [("left", "right"), (None, "right"), ("left", None)])
    def test_secret_must_be_shared(
        self, attention: str | None, ffn: str | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A secret that differs or is missing on one side is refused on both, and shown on neither."""
        with self.group() as group:
            group.settings = replace(group.settings, secret=ffn)
            group.start_ffn()
            with pytest.raises(HandshakeRefused, match="secret") as refused:
                group.open_attention(settings=replace(group.settings, secret=attention))
            assert within(5, lambda: "secret" in caplog.text)
            for text in (str(refused.value), caplog.text):
                assert "left" not in text
                assert "right" not in text
            group.forward(group.open_attention(), 1, 3)

    @clause("4.5")
    def test_second_holder_of_a_rank_is_refused(self) -> None:
        """A rank that is served is not served twice; the first is not disturbed."""
        with self.group() as group:
            group.start_ffn()
            port = group.open_attention()
            with pytest.raises(DeadlineExceeded, match="attention rank 0 is already"):
                group.open_attention(settings=replace(group.settings, join_timeout_s=0.6))
            group.forward(port, 1, 3)

    @clause("4.6")
    def test_replacement_is_served(self) -> None:
        """An attention rank that left in the middle of a step makes room for its successor."""
        with self.group() as group:
            group.start_ffn()
            first = group.open_attention()
            step = Step(9, Mode.EAGER, (4,))
            first.begin(step)
            first.send(step, 0, group.rows(4))
            first.close()
            group.forward(group.open_attention(), 1, 3)
