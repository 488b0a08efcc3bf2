"""The memory that one attention rank and one FFN rank share: heads, rows and marks of each stage."""

from __future__ import annotations

import platform
import threading
from typing import TYPE_CHECKING

import torch

from afd_connectors.errors import FrameError
from afd_connectors.shape import Shape
from afd_connectors.transports.paired.buffers import raw
from afd_connectors.transports.paired.head import HEAD_BYTES
from afd_connectors.transports.shm_plan import LINE, Plan

if TYPE_CHECKING:
    from torch import Tensor

_CALLS = 1  # where attention counts its announcements, in marks, beside what else it writes there
_ASLEEP = {"attention": 0, "ffn": LINE // 8}  # where each role says so, in marks
_FENCE = threading.Lock()
#: These processors keep the order of writes and of reads; only a read may overtake a write before it.
_IN_ORDER = platform.machine().lower() in ("x86_64", "amd64")


def fence() -> None:
    """Memory touched before it is so for the other process before memory touched after it, reads and writes alike.

    Python has no barrier of its own. Taking a lock is a full one on processors that otherwise keep the order. On
    others nothing moves up beyond the taking of a lock or down beyond its release, so between the first release and
    the second taking nothing passes.
    """
    with _FENCE:
        pass
    if not _IN_ORDER:
        with _FENCE:
            pass


class Lane:
    """One direction of one stage: a head, rows, logits, and a mark that counts the frames that were published.

    hidden, router: bytes, as tensors and as views of them; mark: the counter, alone.
    """

    __slots__ = ("_head", "count", "hidden", "hidden_bytes", "mark", "router", "router_bytes")

    def __init__(self, mark: memoryview, head: memoryview, hidden: Tensor, router: Tensor) -> None:
        self.mark, self._head = mark, head
        self.hidden, self.hidden_bytes = hidden, raw(hidden)  # views alone would not keep the mapping
        self.router, self.router_bytes = router, raw(router)
        self.count = 0

    def publish(self, head: bytes) -> None:
        """The rows are in place: from now on the other side may read them."""
        self._head[:HEAD_BYTES] = head
        self.count = count = self.count + 1
        if not _IN_ORDER:
            fence()
        self.mark[0] = count
        _FENCE.acquire()  # what fence() begins with, and all that it is here
        _FENCE.release()
        if not _IN_ORDER:
            fence()

    def arrived(self) -> bool:
        """Whether the other side has published the next frame; `take` makes it this side's."""
        arrived: bool = self.mark[0] != self.count
        return arrived

    def head(self) -> memoryview:
        """HEAD_BYTES of the frame that arrived; FrameError when frames were skipped."""
        found = self.mark[0]
        if found != self.count + 1:
            raise FrameError(f"it published frame {found} after frame {self.count}")
        if not _IN_ORDER:
            fence()
        return self._head

    def take(self) -> None:
        """The frame that arrived has been read, or is being used until this side publishes its answer."""
        self.count += 1


class Segment:
    """A mapping of the memory, by stage: `requests` and `replies`.

    It lives as long as one of its tensors does, so nothing that is still computed from can vanish, and needs no
    descriptor. Raises RuntimeError when the memory cannot be mapped.
    """

    def __init__(self, descriptor: int, shape: Shape) -> None:
        plan = Plan(shape)
        storage = torch.UntypedStorage.from_file(f"/proc/self/fd/{descriptor}", True, plan.total)
        assert isinstance(storage, torch.UntypedStorage)
        whole = torch.empty(0, dtype=torch.uint8).set_(storage)
        view = raw(whole)
        self._marks = view[: plan.line(shape.stages, 0)].cast("Q")
        self.requests: list[Lane] = []
        self.replies: list[Lane] = []
        for stage in range(shape.stages):
            request, reply, logits = plan.rows(stage)
            for lanes, kind, start, router in (
                (self.requests, 0, request, whole[logits : logits + shape.router_bytes]),
                (self.replies, 1, reply, whole[:0]),
            ):
                mark, head = plan.line(stage, kind), plan.line(stage, 2 + kind)
                rows = whole[start : start + shape.hidden_bytes]
                lanes.append(Lane(view[mark : mark + 8].cast("Q"), view[head : head + HEAD_BYTES], rows, router))

    def call(self) -> None:
        """Tells an FFN rank that looks here, and at no connection, of something to read on the control connection."""
        self._marks[_CALLS] += 1

    @property
    def calls(self) -> int:
        """How often the attention rank has called."""
        return self._marks[_CALLS]

    def doze(self, role: str, asleep: bool) -> None:
        """Says that `role` waits in a poll and must be woken, or does not any more."""
        self._marks[_ASLEEP[role]] = int(asleep)
        fence()

    def dozing(self, role: str) -> bool:
        """Whether `role` must be woken after something was published."""
        return self._marks[_ASLEEP[role]] != 0
