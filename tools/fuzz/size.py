"""What a process holds, and the most that it held while it was attacked."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MAX_THREADS = 160


@dataclass(frozen=True, slots=True)
class Size:
    """What a process holds; the kernel's socket buffers are not in it."""

    mib: float
    threads: int
    files: int

    @classmethod
    def of(cls, pid: int) -> Size:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        tasks, files = (len(os.listdir(f"/proc/{pid}/{kind}")) for kind in ("task", "fd"))
        return cls(pages * os.sysconf("SC_PAGESIZE") / 2**20, tasks, files)

    def most(self, other: Size) -> Size:
        """The larger of each."""
        return Size(max(self.mib, other.mib), max(self.threads, other.threads), max(self.files, other.files))


def watched(ffn: subprocess.Popen[str], attacker: subprocess.Popen[str], deadline: float) -> Size:
    """The most that the FFN process held until the attacks ended, or at time.monotonic() `deadline`."""
    most = Size.of(ffn.pid)
    while attacker.poll() is None and ffn.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
        with suppress(OSError):  # it ended just now
            most = most.most(Size.of(ffn.pid))
    return most


def grown(before: Size, most: Size, after: Size, memory_mib: float) -> list[str]:
    """What of it is over a bound: a finding each."""
    bounds = (
        ("MiB", most.mib, before.mib + memory_mib),
        ("threads", most.threads, MAX_THREADS),
        ("descriptors after the attacks", after.files, before.files + 4),
    )
    return [f"{name}: expected at most {bound:.0f}, found {held:.0f}" for name, held, bound in bounds if held > bound]
