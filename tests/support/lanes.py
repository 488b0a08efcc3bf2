"""Streams of two devices that only note what is enqueued, and a run of it in which no transfer is buffered."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Event:
    """Done once its record was reached."""

    done = False


class Stream:
    """A queue of what a device will do in this order."""

    def __init__(self, side: Side, name: str) -> None:
        self.side, self.name, self.device = side, name, None
        self.todo: deque[tuple[str, object]] = deque()

    def record_event(self) -> Event:
        event = Event()
        self.todo.append(("record", event))
        return event

    def wait_event(self, event: Event) -> None:
        self.todo.append(("wait", event))


class Side:
    """Stands for `torch` in one role's module: `cuda` with one stream that all its threads begin on.

    one_stream: what is meant for other streams comes to that one too, as where a device runs them one after the other.
    """

    def __init__(self, one_stream: bool = False) -> None:
        self.cuda = self
        self._one = one_stream
        self.main = Stream(self, "main")
        self.streams = [self.main]
        self._local = threading.local()

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)

    def Stream(self, _device: object) -> Stream:  # as torch.cuda has it
        if self._one:
            return self.main
        self.streams.append(Stream(self, f"side {len(self.streams)}"))
        return self.streams[-1]

    def current_stream(self) -> Stream:
        return getattr(self._local, "stream", self.main)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        kept, self._local.stream = self.current_stream(), stream
        yield
        self._local.stream = kept

    def enqueue(self, kind: str, what: object) -> None:
        self.current_stream().todo.append((kind, what))


def run(*sides: Side) -> list[str]:
    """Does all that is enqueued; a transfer takes place only when both its ends are reached. What is stuck is returned.

    "send" and "recv" carry (channel, key); the two ends of a channel must come in the same order of keys.
    """
    streams = [stream for side in sides for stream in side.streams]
    moved = True
    while moved:
        moved = False
        for stream in streams:
            while stream.todo and _alone(*stream.todo[0]):
                stream.todo.popleft()
                moved = True
        heads = {stream.todo[0]: stream for stream in streams if stream.todo and stream.todo[0][0] in ("send", "recv")}
        for (kind, transfer), stream in heads.items():
            other = heads.get(("recv", transfer)) if kind == "send" else None
            if other is not None:
                stream.todo.popleft()
                other.todo.popleft()
                moved = True
    return [f"{stream.name}: {stream.todo[0]}" for stream in streams if stream.todo]


def _alone(kind: str, what: object) -> bool:
    """Whether the head of a stream can be done without another stream."""
    if isinstance(what, Event):
        if kind == "wait":
            return what.done
        what.done = True
        return True
    return kind == "compute"
