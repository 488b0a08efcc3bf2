"""Tells turns of a benchmark in which others took the processors from those that can be compared."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

MOST_WAITED = 0.02  # of a turn: less is never a disturbance
MOST_OF_LEAST = 1.5  # where something else always runs: so many times what the calmest turn waited


class Turn:
    """What one turn took, in milliseconds a step, and which share of it these processes waited: entered around it."""

    def __init__(self, *processes: int) -> None:
        self._processes, self.step, self.waited = processes, 0.0, 0.0

    def __enter__(self) -> Turn:
        self._before, self._start = self._waits(), time.perf_counter()
        return self

    def __exit__(self, *_error: object) -> None:
        took = time.perf_counter() - self._start
        self.waited = (self._waits() - self._before) / took

    def _waits(self) -> float:
        """Seconds for which threads of these processes could not run, and for which the host ran somebody else."""
        stolen = int(Path("/proc/stat").read_text().split(maxsplit=9)[8]) / os.sysconf("SC_CLK_TCK")
        delays = (int((task / "schedstat").read_text().split()[1]) for pid in self._processes for task in tasks(pid))
        return stolen + sum(delays) / 1e9


def undisturbed(pairs: Sequence[tuple[Turn, Turn]]) -> list[tuple[Turn, Turn]]:
    """The pairs of which neither turn waited much longer for a processor than the calmest one of its side."""
    limits = [max(MOST_WAITED, MOST_OF_LEAST * min(turn.waited for turn in side)) for side in zip(*pairs, strict=True)]
    return [pair for pair in pairs if all(turn.waited <= limit for turn, limit in zip(pair, limits, strict=True))]


def tasks(pid: int) -> Iterator[Path]:
    """The threads of a process and of all its children, as folders of /proc."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield task
        for child in (task / "children").read_text().split():
            yield from tasks(int(child))


def put(pid: int, core: int) -> None:
    """All threads of a process and of its children on processor ``core``."""
    for task in tasks(pid):
        os.sched_setaffinity(int(task.name), {core})
