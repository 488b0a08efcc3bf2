"""The process that is attacked: an FFN rank that serves until its standard input ends."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from typing import TYPE_CHECKING

from afd_connectors import Layout, Settings, resolve
from fuzz.victim import FACTS, SECRET, SHAPE

if TYPE_CHECKING:
    from torch import Tensor

TIMEOUT_S = 5.0


def settings(port: int) -> Settings:
    """Of every rank that is honest."""
    return Settings(port=port, timeout_s=TIMEOUT_S, recovery_timeout_s=30, join_timeout_s=30, secret=SECRET)


def answer(hidden: Tensor, router: Tensor | None, layer: int) -> Tensor:
    """What the FFN rank computes."""
    out = hidden * 2 + layer
    return out if router is None else out + router.sum(-1, keepdim=True).to(hidden.dtype)


class Unforeseen(logging.Handler):
    """Lets only errors through: what strangers cause is a warning."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            print(record.getMessage(), file=sys.stderr, flush=True)


def serve(connector: str, port: int) -> None:
    """Serves; all that it says on standard error is a finding."""
    import faulthandler

    faulthandler.register(signal.SIGUSR1)
    log = logging.getLogger("afd.connectors")
    log.addHandler(Unforeseen())
    log.propagate = False
    layout = Layout("ffn", 0, FACTS.num_attention, 1)
    ffn = resolve(connector, "cpu")(layout, SHAPE, FACTS, settings(port)).open_ffn()
    ended = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    print("listening", flush=True)
    while not ended.is_set():
        work = ffn.recv(wait_s=0.5)
        if work is not None:
            ffn.send(work, answer(work.hidden, work.router, work.layer))
    ffn.close()
