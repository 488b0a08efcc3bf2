"""Honest ranks beside the attacks: one that exchanges all the time, one that joins again and again."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from afd_connectors import AttentionPort, ConnectorError, Layout, Mode, Step, resolve
from fuzz.target import answer, settings
from fuzz.victim import FACTS, SHAPE

GOOD, JOINING = 0, 3
KINDS = ("exchanges", "joins")
JOIN_S = 20.0  # those who are served notice nothing, those who come while hundreds knock wait for their turn


class Honest:
    """The honest ranks: what they did, how long it took at most, and what went wrong."""

    def __init__(self, connector: str, port: int, longest_s: float) -> None:
        self._limits = dict(zip(KINDS, (longest_s, JOIN_S), strict=True))
        self.counts = dict.fromkeys(KINDS, 0)
        self.longest = dict.fromkeys(KINDS, 0.0)
        self.wrong: list[str] = []
        self._connector, self._port, self._ended = connector, port, threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, args=(run,), daemon=True) for run in (self._exchange, self._join)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> bool:
        """Whether all came to their end; one that did not is a finding."""
        self._ended.set()
        for thread in self._threads:
            thread.join(60)
            if thread.is_alive():
                self.wrong.append("an honest rank is still waiting")
                return False
        return True

    def forward(self, port: AttentionPort, seq: int, layers: int = SHAPE.layers) -> None:
        """A step with checked answers."""
        import torch

        step = Step(seq, Mode.EAGER, (random.randrange(SHAPE.tokens) + 1, random.randrange(SHAPE.tokens) + 1))
        port.begin(step)
        for layer in range(layers):
            start = time.monotonic()
            sent = []
            for stage, rows in enumerate(step.tokens):
                hidden = torch.randint(-8, 8, (rows, SHAPE.hidden)).bfloat16()
                router = torch.randint(-8, 8, (rows, SHAPE.router)).float()
                port.send(step, layer, hidden, router, stage=stage)
                sent.append((hidden, router))
            for stage, (hidden, router) in enumerate(sent):
                out = torch.empty_like(hidden)
                port.recv(step, layer, out, stage=stage)
                if not torch.equal(out, answer(hidden, router, layer)):
                    self.wrong.append(f"a wrong answer in layer {layer} stage {stage} of step {seq}")
            self._took("exchanges", time.monotonic() - start)
            time.sleep(0.002)

    def open(self, rank: int) -> AttentionPort:
        """A port of an honest rank."""
        layout = Layout("attention", rank, FACTS.num_attention, 1)
        return resolve(self._connector, "cpu")(layout, SHAPE, FACTS, settings(self._port)).open_attention()

    def _took(self, kind: str, seconds: float) -> None:
        self.counts[kind] += 1
        self.longest[kind] = max(self.longest[kind], seconds)
        if seconds > self._limits[kind]:
            self.wrong.append(f"{kind}: one took {seconds:.1f} s")

    def _watch(self, run: Callable[[], None]) -> None:
        try:
            run()
        except (ConnectorError, AssertionError) as error:
            self.wrong.append(f"an honest rank failed: {error}")

    def _exchange(self) -> None:
        port = self.open(GOOD)
        seq, since = 0, port.peers()[0].since
        while not self._ended.is_set():
            seq += 1
            self.forward(port, seq)
        if port.peers()[0].since != since:
            self.wrong.append("an honest rank lost its connection in between")
        port.close()

    def _join(self) -> None:
        while not self._ended.wait(0.5):
            start = time.monotonic()
            port = self.open(JOINING)
            self.forward(port, 1, layers=1)
            port.close()
            self._took("joins", time.monotonic() - start)
