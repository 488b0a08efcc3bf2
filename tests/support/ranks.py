"""Ranks of a connector in processes of their own, for tests that kill, stop and replace them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch

from afd_connectors import AttentionPort, Facts, FFNPort, Layout, Mode, Role, Settings, Shape, Step, names, resolve
from tests.support import netns

SHAPE = Shape(16, 8, "bfloat16", 40, stages=2)
FACTS = Facts("0.1.0", "none", "ranks", "bfloat16", 8, 40, 0, "ffn", 2, (), 1, 1)
TOKENS = (5, 3)
OPEN, STEPPED = "open", "stepped"
_WAIT_S = 60.0

# multiprocessing looks after all children whenever it starts one, and two threads that find the same one dead at once
# do not both learn how it ended.
_CHILDREN = threading.RLock()

# Forks of a process that has imported torch and done nothing else: as fresh as a new interpreter, and faster.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])


def reconnecting() -> list[str]:
    """Every connector on CPU that survives the loss of a rank."""
    found = []
    for name in names():
        try:
            connector = resolve(name, "cpu")
        except ValueError:  # for other devices
            continue
        if "reconnect" in connector.features:
            found.append(name)
    return found


def attention(connector: str, settings: Settings) -> AttentionPort:
    """An open attention rank 0 of 1A1F in this process."""
    return resolve(connector, "cpu")(Layout("attention", 0, 1, 1), SHAPE, FACTS, settings).open_attention()


def layers(port: AttentionPort, step: Step, first: int, last: int, pause_s: float = 0.0) -> None:
    """Exchanges of all stages for layers first..last-1, each answer checked."""
    for layer in range(first, last):
        sent = [torch.randint(-8, 8, (rows, SHAPE.hidden)).bfloat16() for rows in step.tokens]
        for stage, rows in enumerate(sent):
            port.send(step, layer, rows, stage=stage)
        for stage, rows in enumerate(sent):
            out = torch.full_like(rows, 77)
            port.recv(step, layer, out, stage=stage)
            assert torch.equal(out, rows * 2 + layer), f"layer {layer} stage {stage} of step {step.seq}"
        time.sleep(pause_s)


def forward(port: AttentionPort, seq: int, pause_s: float = 0.0) -> None:
    """A whole step, each answer checked."""
    step = Step(seq, Mode.EAGER, TOKENS)
    port.begin(step)
    layers(port, step, 0, SHAPE.layers, pause_s)


class Rank:
    """One rank's process, its port open; an FFN rank doubles, an attention rank runs one step after the other.

    namespace: the network namespace that it is in, this process's own without one.
    """

    def __init__(self, connector: str, role: Role, settings: Settings, namespace: str | None = None) -> None:
        self._words, theirs = _CONTEXT.Pipe(duplex=False)
        self._process = _CONTEXT.Process(target=run, args=(connector, role, settings, namespace, theirs), daemon=True)
        with _CHILDREN:
            self._process.start()
        theirs.close()
        self.heard(OPEN)

    def heard(self, word: str) -> None:
        """Waits until it says ``word``, which must be the next that it says."""
        assert self._words.poll(_WAIT_S), f"nothing within {_WAIT_S:g} s instead of {word!r}"
        assert self._words.recv() == word

    def signal(self, number: int) -> None:
        """Sends it a signal; waits for its end after a deadly one."""
        assert self._process.pid is not None
        with _CHILDREN:
            os.kill(self._process.pid, number)
            if number == signal.SIGKILL:
                self._process.join(10)
                assert self._process.exitcode == -signal.SIGKILL

    def end(self) -> None:
        """Kills it if it runs."""
        with _CHILDREN:
            if self._process.is_alive():
                self.signal(signal.SIGKILL)
        self._words.close()


def run(connector: str, role: Role, settings: Settings, namespace: str | None, words: Connection) -> None:
    """The process; ends when it is killed."""
    torch.set_num_threads(1)
    if namespace is not None:
        netns.enter(namespace)
    made = resolve(connector, "cpu")(Layout(role, 0, 1, 1), SHAPE, FACTS, settings)
    if role == "ffn":
        _serve(made.open_ffn(), words.send)
    else:
        _ask(made.open_attention(), words.send)


def _serve(port: FFNPort, say: Callable[[str], None]) -> None:
    say(OPEN)
    while True:
        work = port.recv(wait_s=1.0)
        if work is not None:
            port.send(work, work.hidden * 2 + work.layer)


def _ask(port: AttentionPort, say: Callable[[str], None]) -> None:
    say(OPEN)
    seq = 0
    while True:
        seq += 1
        forward(port, seq, pause_s=0.01)
        say(STEPPED)
