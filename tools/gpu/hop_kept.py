"""A graph of hops that is kept and replayed: while the peer stands still or dies, with other bits each time."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from afd_workers.cuda_ffn import Recorder
from tools.gpu.hop_side import Side


class KeptSide(Side):
    """A side that holds one graph."""

    kept_count = 0

    def __init__(self, role: str, name: str, rows: int, hidden: int, limit_s: float) -> None:
        super().__init__(role, name, rows, hidden, limit_s)
        self.kept: Callable[[], None] = lambda: None

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
