"""One end of one-sided hops: a window to the other process, rows, and round trips of them in graphs."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

import torch

from afd_connectors.shape import Shape
from afd_connectors.transports.nvlink.driver import Driver
from afd_connectors.transports.nvlink.moves import Moves
from afd_connectors.transports.nvlink.sizes import Plan, plan_of
from afd_connectors.transports.nvlink.window import Window
from afd_workers.cuda_ffn import Recorder
from tools.gpu.hop_jobs import timed

MEET_S = 60.0


class Side:
    """What both roles have: a window to the other process, and rows."""

    def __init__(self, role: str, name: str, rows: int, hidden: int, limit_s: float) -> None:
        self.first, self.name, self.limit_s = role == "attention", name, limit_s
        self.driver = Driver()
        self.shape = Shape(rows, hidden, "bfloat16", 2)
        self.window = Window(self.driver, self.shape)
        self.out = torch.zeros(rows * hidden, device="cuda", dtype=torch.bfloat16)
        self.rows = torch.randn(rows * hidden, device="cuda", dtype=torch.bfloat16)

    def meet(self) -> dict[str, object]:
        """Exchanges the memory of both sides over a socket that vanishes with them."""
        started = time.perf_counter()
        mine = self.window.make()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(MEET_S)
            if self.first:
                _dial(sock, self.name)
                other = sock
            else:
                sock.bind("\0" + self.name)
                sock.listen(1)
                other, _ = sock.accept()
                other.settimeout(MEET_S)
            socket.send_fds(other, [b"!"], [mine])
            _, found, _, _ = socket.recv_fds(other, 1, 1)
            self.window.attach(found[0])
            other.sendall(b"!")
            other.recv(1)
        for descriptor in (mine, found[0]):
            os.close(descriptor)
        return {"ms": 1e3 * (time.perf_counter() - started)}

    def hop(
        self, rows: int, hidden: int, trips: int, rounds: int, plan: list[object] | None = None, early: bool = True,
        land: bool = True,
    ) -> dict[str, object]:  # fmt: skip
        """Microseconds one way in a graph; land: the FFN side computes from where rows arrive if it can."""
        count = rows * hidden
        trip = self.trips(count, trips, plan, early=early, land=land)
        self.out.zero_()
        trip()
        torch.cuda.synchronize()
        found = timed(Recorder()(trip), trips, rounds)
        return found | {"right": self.right(count), "error": self.window.error()}

    def trips(
        self, count: int, trips: int, plan: list[object] | None, *, early: bool, land: bool
    ) -> Callable[[], None]:
        """What enqueues round trips of `count` elements."""
        size = 2 * count
        found = plan_of(size) if plan is None else Plan(*plan)  # type: ignore[arg-type]
        moves = Moves(self.driver, self.limit_s, lambda _size: found, early=early)
        arrives = self.window.landing(0) if land and not self.first else self.out.data_ptr()
        source = self.rows.data_ptr() if self.first else arrives
        # The window counts in its own rows; any size is one row of a window that is told so.
        put = self.window.outgoing(source, 1, 0, 0)._replace(size=size)
        wait = self.window.incoming(arrives, 1, 0, 0)._replace(size=size)

        def trip() -> None:
            stream = torch.cuda.current_stream().cuda_stream
            for _ in range(trips):
                if self.first:
                    moves.put((put,), stream)
                    moves.wait((wait,), stream)
                else:
                    moves.wait((wait,), stream)
                    moves.put((put,), stream)

        return trip

    def right(self, count: int) -> bool:
        """Whether what came back is what was sent, bit for bit; for the attention side."""
        return not self.first or torch.equal(self.out[:count], self.rows[:count])


def _dial(sock: socket.socket, name: str) -> None:
    until = time.monotonic() + MEET_S
    while True:
        try:
            sock.connect("\0" + name)
            return
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
