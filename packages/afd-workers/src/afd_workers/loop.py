"""The FFN server loop: receive the rows of an exchange, compute its stage, send the result back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from afd_connectors.ports import FFNPort, Work
    from afd_workers.rehearsal import Rehearsal

log = logging.getLogger("afd.workers")

IDLE_CHECK_S = 0.5


class Source(Protocol):
    """Where a loop's work comes from."""

    def serve_one(self) -> bool:
        """One exchange, or a short wait for one; False when there will be no other."""

    def close(self) -> None:
        """Lets `serve_one` return soon; called on another thread, possibly twice."""


class Exchanges:
    """The exchanges that arrive at a port.

    compute: Work -> the stage's output, [rows, hidden]. idle: called when nothing came for IDLE_CHECK_S. rehearsal:
    what is computed meanwhile.
    """

    def __init__(
        self,
        port: FFNPort,
        compute: Callable[[Work], Tensor],
        idle: Callable[[], None] = lambda: None,
        rehearsal: Rehearsal | None = None,
    ) -> None:
        self._port, self._compute, self._idle = port, compute, idle
        self._rehearsal = port.on_step = rehearsal

    def serve_one(self) -> bool:
        """See Source."""
        work = self._port.recv(wait_s=IDLE_CHECK_S) if self._rehearsal is None else self._rehearsing(self._rehearsal)
        if work is None:
            self._idle()
        else:
            self._port.send(work, self._compute(work))
            if self._rehearsal is not None:
                self._rehearsal.answered(work.layer)
        return True

    def _rehearsing(self, rehearsal: Rehearsal) -> Work | None:
        """The next exchange; while it is not there yet, a stage is rehearsed where there is time for one."""
        work, late, spare_s = None, False, rehearsal.spare_s()
        if spare_s is not None:
            work = self._port.recv(wait_s=spare_s)
            if work is None and rehearsal.between():
                work = self._port.recv(wait_s=0.0)
                late = work is not None
        if work is None:
            work = self._port.recv(wait_s=IDLE_CHECK_S)
        if work is not None:
            rehearsal.arrived(work.step.seq, late=late)
        return work

    def close(self) -> None:
        """See Source."""
        self._port.close()


class ServerLoop:
    """One daemon thread that serves a source until it is stopped or fails.

    on_death: called once, on that thread, with the error that ended the loop; never after ``stop``.
    around: what the thread enters before it serves and leaves at its end.
    """

    def __init__(
        self,
        source: Source,
        on_death: Callable[[BaseException], None],
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._source, self._on_death, self._around = source, on_death, around
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="afd-ffn-loop", daemon=True)

    def start(self) -> None:
        """Begins to serve; returns at once."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Closes the source and waits for the thread at most ``timeout_s``; True when it has ended."""
        self._stopping.set()
        self._source.close()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with self._around():
                while not self._stopping.is_set() and self._source.serve_one():
                    continue
        except BaseException as error:  # whatever ended the loop must end the server: nobody else watches this thread
            if not self._stopping.is_set():
                log.exception("AFD FFN server loop ended: %s", error)
                self._on_death(error)
