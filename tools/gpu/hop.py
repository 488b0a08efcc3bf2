"""One side of the hop benchmark in a process of its own; see bench_hop_gpu.py.

python -m tools.gpu.hop '{"role": "attention"|"ffn", "connector": C, "port": N, "sizes": [...],
"hidden": H, "trips": T, "fp8": whether as fp8 on the wire}'
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

from afd_connectors import registry
from afd_connectors.errors import PeerLost
from afd_connectors.facts import Facts
from afd_connectors.layout import Layout
from afd_connectors.settings import Settings
from afd_connectors.shape import Shape
from afd_connectors.step import Mode, Step
from afd_connectors.stepped import DeviceAttentionPort, SteppedFFNPort
from afd_connectors.transports.nccl.library import ID_BYTES, Nccl, load
from afd_connectors.transports.nvlink.fp8_reference import rounded
from afd_connectors.transports.nvlink.sizes import PACKED_LEAST
from afd_workers.cuda_ffn import Recorder, StepSource, own_stream
from afd_workers.loop import ServerLoop
from tools.gpu.children import answers, say

ROUNDS, AHEAD, TIMEOUT_S = 20, 4, 3.0


class Side:
    """What both roles have."""

    def __init__(
        self, role: str, connector: str, port: int, sizes: list[int], hidden: int, trips: int, fp8: bool = False
    ) -> None:
        self.sizes, self.trips, self.hidden, self.fp8 = sizes, trips, hidden, fp8
        shape = Shape(max(sizes), hidden, "bfloat16", trips)
        facts = Facts("hop", "none", "hop", "bfloat16", hidden, trips, 0, "ffn", 1, (), 1, 1)
        layout = Layout("ffn" if role == "ffn" else "attention", 0, 1, 1)
        extra = {"wire_dtype": "fp8"} if fp8 else {}
        settings = Settings(port=port, join_timeout_s=120, timeout_s=TIMEOUT_S, recovery_timeout_s=60, extra=extra)
        self.connector = registry.resolve(connector, "cuda")(layout, shape, facts, settings)
        self.rows = torch.randn((max(sizes), hidden), device="cuda", dtype=torch.bfloat16)
        self.library: Nccl = load()

    def raw(self, ident: bytes, first: bool) -> dict[str, object]:
        """Microseconds one way of bare NCCL calls in a graph, one communicator for both ways."""
        comm = self.library.join(ident, int(first), 2)
        found = []
        for size in self.sizes:
            address, count = self.rows.data_ptr(), size * self.hidden * 2

            def trip(address: int = address, count: int = count) -> None:
                stream = torch.cuda.current_stream().cuda_stream
                for _ in range(self.trips):
                    calls = (self.library.send, self.library.recv) if first else (self.library.recv, self.library.send)
                    for call in calls:
                        call(comm, 1 - int(first), address, count, stream)

            trip()
            torch.cuda.synchronize()
            found.append(1e3 * timed(Recorder()(trip)) / self.trips / 2)
        return {"us": found}


class Attention(Side):
    """Sends rows and waits for them to come back."""

    def right(self, out: torch.Tensor, size: int) -> bool:
        """Whether rows came back bit for bit, rounded on either way where they travel as fp8."""
        rows = self.rows[:size]
        packed = self.fp8 and rows.nbytes >= PACKED_LEAST
        return torch.equal(out[:size], rounded(rounded(rows)) if packed else rows)

    def measure(self) -> dict[str, object]:
        """Microseconds one way through the port in graphs and eagerly, and of CPU time per announcement."""
        port = self.connector.open_attention()
        out = torch.empty_like(self.rows)
        graphs, eagerly, host, right = [], [], [], True
        seq = 0
        for size in self.sizes:

            def trips(mode: Mode, size: int = size) -> None:
                nonlocal seq
                seq += 1
                step = Step(seq, mode, (size,))
                port.begin(step)
                for layer in range(self.trips):
                    port.send(step, layer, self.rows[:size])
                    port.recv(step, layer, out[:size])

            out.zero_()
            trips(Mode.EAGER)
            torch.cuda.synchronize()
            right = right and self.right(out, size)
            eagerly.append(1e3 * timed(lambda: trips(Mode.EAGER), ahead=1) / self.trips / 2)
            replay = Recorder()(lambda: trips(Mode.CAPTURE))
            spent: list[float] = []

            def step(replay: Callable[[], None] = replay, size: int = size, spent: list[float] = spent) -> None:
                nonlocal seq
                seq += 1
                started = time.perf_counter()
                port.begin(Step(seq, Mode.REPLAY, (size,)))
                spent.append(time.perf_counter() - started)
                replay()

            out.zero_()
            graphs.append(1e3 * timed(step) / self.trips / 2)
            right = right and self.right(out, size)
            host.append(1e6 * median(spent))
        port.close()
        return {"graph_us": graphs, "eager_us": eagerly, "begin_us": host, "right": right}

    def endure(self, seconds: float) -> dict[str, object]:
        """Replays a graph per size in turn, each step checked bit for bit, over FFN ranks that come and go."""
        port = self.connector.open_attention()
        assert isinstance(port, DeviceAttentionPort)
        out, graphs = torch.empty_like(self.rows), dict[int, Callable[[], None]]()
        seq = steps = captured = 0
        right, events = True, list[dict[str, object]]()

        def trips(mode: Mode, size: int) -> None:
            nonlocal seq
            seq += 1
            step = Step(seq, mode, (size,))
            port.begin(step)
            for layer in range(self.trips):
                port.send(step, layer, self.rows[:size])
                port.recv(step, layer, out[:size])

        for size in self.sizes:
            trips(Mode.EAGER, size)
        until, last = time.monotonic() + seconds, time.monotonic()
        while time.monotonic() < until:
            size = self.sizes[steps % len(self.sizes)]
            if size not in graphs:
                graphs[size] = Recorder()(partial(trips, Mode.CAPTURE, size))
                captured += 1
            seq += 1
            out.zero_()
            self.rows[:size].normal_()
            port.begin(Step(seq, Mode.REPLAY, (size,)))
            check = port.witness()
            graphs[size]()
            with port.awaiting():
                torch.cuda.current_stream().synchronize()
            try:
                check()
            except PeerLost as lost:
                began = time.monotonic()
                port.rejoin()
                done = time.monotonic()
                events.append({"noticed_s": began - last, "rejoin_s": done - began, "why": lost.message[:90]})
                if not port.lasting:
                    graphs.clear()
                    trips(Mode.EAGER, size)
                continue
            right, steps, last = right and self.right(out, size), steps + 1, time.monotonic()
            if events and "next_s" not in events[-1]:
                events[-1]["next_s"] = last - done
        port.close()
        return {"steps": steps, "right": right, "graphs": captured, "losses": events}


class FFN(Side):
    """Sends back what it receives."""

    def serve(self) -> dict[str, object]:
        """Listens from now on."""
        port = self.connector.open_ffn()
        assert isinstance(port, SteppedFFNPort)
        self.source = StepSource(port, lambda _layer, hidden, _router: hidden)
        self.loop = ServerLoop(self.source, lambda _error: None, lambda: own_stream(torch.device("cuda", 0)))
        self.loop.start()
        return {"serving": True}

    def stop(self) -> dict[str, object]:
        """Ends serving in whatever step it is, from this thread; whether the serving thread ended too."""
        return {"stopped": self.loop.stop()}

    def figures(self) -> dict[str, object]:
        """What was served."""
        return dict(self.source.figures())


def timed(call: Callable[[], None], ahead: int = AHEAD) -> float:
    """Milliseconds of one call on the device, the median of ROUNDS.

    `ahead` calls are enqueued before one is awaited.
    """
    times: list[float] = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(ahead):
            call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / ahead)
    return median(times[2:])


def main() -> None:
    """Answers jobs until standard input ends."""
    out = answers()
    torch.cuda.set_device(0)
    given = json.loads(sys.argv[1])
    side: Side = (FFN if given["role"] == "ffn" else Attention)(**given)
    with torch.inference_mode(), own_stream(torch.device("cuda", 0)):
        say(out, {"ready": True, "ident": side.library.unique_id().hex(), "version": side.library.version()})
        for line in sys.stdin:
            job = json.loads(line)
            operation = job.pop("op")
            if operation == "raw":
                ident = bytes.fromhex(job["ident"])
                assert len(ident) == ID_BYTES
                say(out, side.raw(ident, isinstance(side, Attention)))
            else:
                say(out, getattr(side, operation)(**job))


if __name__ == "__main__":
    main()
