"""One side of the benchmark of one-sided hops in a process of its own; see bench_hop_nvlink.py.

python -m tools.gpu.hop_nvlink '{"role": "attention"|"ffn", "name": N, "rows": R, "hidden": H, "limit_s": S}'
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from itertools import pairwise
from statistics import median, quantiles

import torch

from afd_connectors.shape import Shape
from afd_connectors.transports.nccl.library import Nccl, load
from afd_connectors.transports.nvlink.driver import Driver
from afd_connectors.transports.nvlink.moves import Moves
from afd_connectors.transports.nvlink.sizes import Plan, plan_of
from afd_connectors.transports.nvlink.window import Window
from afd_workers.cuda_ffn import Recorder, own_stream
from tools.gpu.children import answers, say

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
        self.library: Nccl = load()
        self.kept: Callable[[], None] = lambda: None

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

    def ident(self) -> dict[str, object]:
        """Of a communicator to be made."""
        return {"ident": self.library.unique_id().hex(), "version": self.library.version()}

    def join(self, ident: str) -> dict[str, object]:
        """One communicator for both ways."""
        self.comm = self.library.join(bytes.fromhex(ident), int(self.first), 2)
        return {}

    def nccl(self, rows: int, hidden: int, trips: int, rounds: int) -> dict[str, object]:
        """Microseconds one way of NCCL calls in a graph."""
        count, address = rows * hidden * 2, self.rows.data_ptr()

        def trip() -> None:
            stream = torch.cuda.current_stream().cuda_stream
            for _ in range(trips):
                calls = (self.library.send, self.library.recv) if self.first else (self.library.recv, self.library.send)
                for call in calls:
                    call(self.comm, 1 - int(self.first), address, count, stream)

        trip()
        torch.cuda.synchronize()
        return timed(Recorder()(trip), trips, rounds)

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

    def keep(self, rows: int, hidden: int, trips: int) -> dict[str, object]:
        """A graph for `again`."""
        self.kept_count = rows * hidden
        trip = self.trips(self.kept_count, trips, None, early=True, land=True)
        self.kept = Recorder()(trip)
        return {}

    def again(self, times: int = 1) -> dict[str, object]:
        """Replays the kept graph, each time waiting for the device."""
        self.out.zero_()
        started = time.perf_counter()
        for _ in range(times):
            self.kept()
            torch.cuda.current_stream().synchronize()
            if self.window.error()[0]:
                break
        spent = time.perf_counter() - started
        sound = int(torch.ones(1000, device="cuda").sum().item()) == 1000
        return {
            "s": spent,
            "right": self.right(self.kept_count),
            "touched": bool(self.out.any()),
            "error": self.window.error(),
            "sound": sound,
        }

    def stress(self, times: int) -> dict[str, object]:
        """The kept graph with new bits each time, any bits at all; wrong: how many 16-bit words came back as others."""
        sent, got = (rows[: self.kept_count].view(torch.int16) for rows in (self.rows, self.out))
        wrong = torch.zeros((), device="cuda", dtype=torch.int64)
        for _ in range(times):
            if self.first:
                sent.random_(-(1 << 15), 1 << 15)
            self.kept()
            if self.first:
                wrong += (sent != got).sum()
        return {"wrong": int(wrong), "error": self.window.error()}

    def ones(self) -> dict[str, object]:
        """How many words of rows that are nothing but ones come back as other than NaN; of the attention side."""
        if self.first:
            self.rows[: self.kept_count].view(torch.int16).fill_(-1)
        self.kept()
        return {"wrong": int((~self.out[: self.kept_count].isnan()).sum()), "error": self.window.error()}

    def end(self) -> dict[str, object]:
        """Seconds until the device lets go of a wait that the host ends."""
        self.kept()
        time.sleep(0.3)
        busy = not torch.cuda.current_stream().query()
        started = time.perf_counter()
        self.window.end()
        torch.cuda.current_stream().synchronize()
        return {"s": time.perf_counter() - started, "busy": busy, "error": self.window.error()}

    def alone(
        self, rows: int, hidden: int, trips: int, rounds: int, plan: list[object], early: bool
    ) -> dict[str, object]:
        """Microseconds one way where both sides are streams of this process: a hop without its link."""
        size = 2 * rows * hidden
        windows = [Window(self.driver, self.shape) for _ in range(2)]
        descriptors = [window.make() for window in windows]
        for window, descriptor in zip(windows, reversed(descriptors), strict=True):
            window.attach(descriptor)
        for descriptor in descriptors:
            os.close(descriptor)
        found = Plan(*plan)  # type: ignore[arg-type]
        moves = Moves(self.driver, self.limit_s, lambda _size: found, early=early)
        arrives = windows[1].landing(0)
        there = windows[0].outgoing(self.rows.data_ptr(), 1, 0, 0)._replace(size=size)
        taken = windows[1].incoming(arrives, 1, 0, 0)._replace(size=size)
        back = windows[1].outgoing(arrives, 1, 0, 0)._replace(size=size)
        got = windows[0].incoming(self.out.data_ptr(), 1, 0, 0)._replace(size=size)
        own, other = torch.cuda.current_stream(), torch.cuda.Stream()

        def ours() -> None:
            for _ in range(trips):
                moves.put((there,), torch.cuda.current_stream().cuda_stream)
                moves.wait((got,), torch.cuda.current_stream().cuda_stream)

        def theirs() -> None:
            for _ in range(trips):
                moves.wait((taken,), torch.cuda.current_stream().cuda_stream)
                moves.put((back,), torch.cuda.current_stream().cuda_stream)

        first = Recorder()(ours)
        with torch.cuda.stream(other):
            second = Recorder()(theirs)
        self.out.zero_()
        torch.cuda.synchronize()

        def both() -> None:
            with torch.cuda.stream(other):
                second()
            first()

        answer = timed(both, trips, rounds)
        torch.cuda.synchronize()
        told = {"right": self.right(rows * hidden), "error": list(windows[0].error())}
        own.synchronize()
        for window in windows:
            window.free()
        return answer | told

    def beside(self, blocks: int, apart: bool) -> dict[str, object]:
        """Milliseconds of a matrix product alone and beside a wait of that many blocks; apart: see Plan."""
        left = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        self.window.restart()
        waits = Moves(self.driver, 0.2, lambda _size: Plan(16384, blocks, blocks, blocks, apart), early=False)
        part = self.window.incoming(self.out.data_ptr(), 1, 0, 0)._replace(size=16384 * blocks)
        side = torch.cuda.Stream()
        found = []
        for beside in (False, True):
            torch.cuda.synchronize()
            if beside:
                waits.wait((part,), side.cuda_stream)
            events = [torch.cuda.Event(enable_timing=True) for _ in range(21)]
            for event in events:
                event.record()
                left @ left
            torch.cuda.synchronize()
            found.append(median(a.elapsed_time(b) for a, b in pairwise(events[5:])))
        return {"ms": found}


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


def timed(replay: Callable[[], None], trips: int, rounds: int) -> dict[str, object]:
    """Microseconds one way, p50 and p99 over replays of `trips` round trips."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
    for event in events[:-1]:
        event.record()
        replay()
    events[-1].record()
    events[-1].synchronize()
    found = [1e3 * begin.elapsed_time(end) / trips / 2 for begin, end in pairwise(events[2:])]
    return {"p50": median(found), "p99": quantiles(found, n=100)[98]}


def serve_jobs(kind: type[Side]) -> None:
    """Answers jobs until standard input ends."""
    out = answers()
    torch.cuda.set_device(0)
    with torch.inference_mode(), own_stream(torch.device("cuda", 0)):
        started = time.perf_counter()
        side = kind(**json.loads(sys.argv[1]))
        say(out, {"ready": True, "s": time.perf_counter() - started})
        for line in sys.stdin:
            job = json.loads(line)
            try:
                answer = getattr(side, job.pop("op"))(**job)
            except Exception as error:  # noqa: BLE001  # told to the parent, which goes on with the next way
                traceback.print_exc()
                answer = {"failed": repr(error)}
            say(out, answer)


if __name__ == "__main__":
    serve_jobs(Side)
