"""Clauses about meeting and parting: any order of starts, refusals with both values, close at any time."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace

import pytest

from afd_connectors.errors import ConnectorError, DeadlineExceeded, HandshakeRefused
from afd_connectors.step import Mode, Step
from afd_connectors.testing.clauses import Clauses
from afd_connectors.testing.group import within


class RendezvousClauses(Clauses):
    """Meeting and parting."""

    def test_attention_may_start_first(self) -> None:
        """The attention rank waits for an FFN rank that comes later."""
        with self.group() as group:
            late = threading.Timer(0.5, group.start_ffn)
            late.start()
            port = group.open_attention()
            late.join()
            group.forward(port, 1, 3)

    def test_missing_ffn_is_named(self, caplog: pytest.LogCaptureFixture) -> None:
        """Without an FFN rank the wait is logged and ends with a sentence that names it and the time."""
        caplog.set_level(logging.INFO, "afd.connectors")
        with self.group(attention=2, ffn=2) as group:
            group.limits(join_timeout_s=1.5)
            start = time.monotonic()
            with pytest.raises(DeadlineExceeded, match=r"attention rank 1 did not reach FFN rank 1 at .* within 1.5 s"):
                group.open_attention(1)
            assert time.monotonic() - start < 10
            assert "attention rank 1 waits for FFN rank 1 at 127.0.0.1" in caplog.text

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

    def test_second_holder_of_a_rank_is_refused(self) -> None:
        """A rank that is served is not served twice; the first is not disturbed."""
        with self.group() as group:
            group.start_ffn()
            port = group.open_attention()
            with pytest.raises(DeadlineExceeded, match="attention rank 0 is already"):
                group.open_attention(settings=replace(group.settings, join_timeout_s=0.6))
            group.forward(port, 1, 3)

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

    def test_close_twice(self) -> None:
        """Closing again does nothing, and a closed port says so."""
        with self.group() as group:
            ffn = group.build("ffn").open_ffn()
            attention = group.open_attention()
            for port in (attention, ffn, attention, ffn):
                port.close()
            with pytest.raises(ConnectorError, match="closed"):
                attention.begin(Step(1, Mode.EAGER, (1,)))
            with pytest.raises(ConnectorError, match="closed"):
                ffn.recv(wait_s=0.1)

    def test_close_while_waiting(self) -> None:
        """Closing a port from another thread ends its waits at once."""
        with self.group() as group:
            ffn = group.build("ffn").open_ffn()
            attention = group.open_attention()
            step = Step(1, Mode.EAGER, (2,))
            attention.begin(step)
            work = None
            attention.send(step, 0, group.rows(2))
            while work is None:
                work = ffn.recv(wait_s=5.0)
            start = time.monotonic()
            for port in (attention, ffn):
                threading.Timer(0.3, port.close).start()
            with pytest.raises(ConnectorError):
                attention.recv(step, 0, group.rows(2))
            try:
                late = ffn.recv(wait_s=30.0)
            except ConnectorError:  # the close came before the wait
                late = None
            assert late is None
            assert time.monotonic() - start < 4

    def test_reopen(self) -> None:
        """The same address serves again right after a close."""
        with self.group() as group:
            for _ in range(3):
                group.start_ffn()
                port = group.open_attention()
                group.forward(port, 1, 3)
                port.close()
                group.stop_ffn()

    def test_wrong_role(self) -> None:
        """The port of the other role cannot be opened."""
        with self.group() as group:
            with pytest.raises(ValueError, match="FFN port"):
                group.build("attention").open_ffn()
            with pytest.raises(ValueError, match="attention port"):
                group.build("ffn").open_attention()

    def test_unknown_option(self) -> None:
        """Options are checked when the connector is built."""
        with self.group() as group, pytest.raises(ValueError, match="no_such_option"):
            group.build("ffn", settings=replace(group.settings, extra={"no_such_option": 1}))

    def test_peers_are_known(self) -> None:
        """Both ports tell the states of all their peers."""
        with self.group(attention=2) as group:
            group.start_ffn()
            port = group.open_attention(1)
            assert [(p.rank, p.state) for p in port.peers()] == [(0, "connected")]
            ffn = group.ffn_port()
            assert within(5, lambda: [p.state for p in ffn.peers()] == ["waiting", "connected"])
            port.close()
            assert within(5, lambda: [p.state for p in ffn.peers()][1] != "connected")
