"""What a hop is compared with: the same rows sent and sent back over Gloo, a Unix socket and bare shared memory."""

from __future__ import annotations

import mmap
import os
import socket
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from afd_connectors.transports.paired.buffers import raw

WAIT_S = 60.0
ROOM = 16 << 20  # bytes of rows and of their answer in bare memory
Pass = Callable[[Tensor], None]  # sends or fills one tensor


def gloo(side: int, folder: str) -> tuple[Pass, Pass]:
    """(send, receive) of torch.distributed's CPU backend between two processes."""
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", store, rank=side, world_size=2, timeout=timedelta(seconds=WAIT_S))
    return lambda rows: dist.send(rows, 1 - side), lambda rows: void(dist.recv(rows, 1 - side))


def unix(side: int, folder: str) -> tuple[Pass, Pass]:
    """(send, receive) of a Unix stream socket that blocks."""
    path = f"{folder}/door"
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if side == 0:
        sock.bind(path + ".new")
        sock.listen(1)
        os.rename(path + ".new", path)
        sock.settimeout(WAIT_S)
        sock = sock.accept()[0]
    else:
        end = time.monotonic() + WAIT_S
        while not os.path.exists(path) and time.monotonic() < end:
            time.sleep(0.01)
        sock.connect(path)
    sock.settimeout(WAIT_S)

    def receive(rows: Tensor) -> None:
        view = seen(rows)
        while view:
            view = view[sock.recv_into(view) :]

    return lambda rows: sock.sendall(seen(rows)), receive


def bare(side: int, folder: str) -> tuple[Pass, Pass]:
    """(send, receive) of two copies and a counter in shared memory: the least that this host's processors need now."""
    with open(f"{folder}/memory", "a+b") as file:
        file.truncate(2 * (4096 + ROOM))
        memory = memoryview(mmap.mmap(file.fileno(), 2 * (4096 + ROOM)))
    places = [memory[at : at + 4096 + ROOM] for at in (0, 4096 + ROOM)]
    (ours, out), (theirs, back) = ((p[:4096].cast("Q"), p[4096:]) for p in (places[side], places[1 - side]))
    count = 0

    def send(rows: Tensor) -> None:
        view = seen(rows)
        out[: len(view)] = view
        ours[0] += 1

    def receive(rows: Tensor) -> None:
        nonlocal count
        view, count = seen(rows), count + 1
        while theirs[0] != count:
            os.sched_yield()
        view[:] = back[: len(view)]

    return send, receive


BASELINES = {"gloo": gloo, "unix": unix, "bare": bare}


def echo(name: str, folder: str, rows: int, hidden: int, rounds: int, pin: Callable[[int], None]) -> None:
    """The other process: sends back what it gets."""
    pin(1)
    send, receive = BASELINES[name](1, folder)
    tensor = torch.empty(rows, hidden, dtype=torch.bfloat16)
    for _ in range(rounds):
        receive(tensor)
        send(tensor)


def round_trips(name: str, rows: int, hidden: int, rounds: int, pin: Callable[[int], None]) -> list[float]:
    """Microseconds of each round trip, in order; pin(1) puts the other process on its processor."""
    import multiprocessing

    with tempfile.TemporaryDirectory() as folder:
        process = multiprocessing.get_context("spawn").Process(
            target=echo, args=(name, folder, rows, hidden, rounds, pin), daemon=True
        )
        process.start()
        send, receive = BASELINES[name](0, folder)
        tensor, back = torch.randn(rows, hidden).to(torch.bfloat16), torch.empty(rows, hidden, dtype=torch.bfloat16)
        times = []
        for _ in range(rounds):
            start = time.perf_counter_ns()
            send(tensor)
            receive(back)
            times.append((time.perf_counter_ns() - start) / 1000)
        if not torch.equal(tensor, back):
            raise SystemExit("the rows that came back differ from those that were sent")
        process.join(10)
        if dist.is_initialized():
            dist.destroy_process_group()
    return times


def seen(rows: Tensor) -> memoryview:
    """The bytes of a tensor."""
    return raw(rows)


def void(_result: object) -> None:
    """Nothing, of anything."""
