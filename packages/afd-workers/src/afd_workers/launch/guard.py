"""Keeps servers from outliving their launcher.

``python -m afd_workers.launch.guard PARENT COMMAND...`` runs COMMAND so that it gets SIGTERM when
PARENT dies. The kernel keeps the wish across exec, so that even a launcher that was killed leaves no server behind
(Linux only). To the kernel the parent is the thread that started COMMAND: one that ends takes it along.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Makes what servers leave behind children of this process, so that it can end them whatever runs as process 1."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def guarded(command: Sequence[str]) -> list[str]:
    """The command line that runs ``command`` so that it ends with this process; afd_workers is on the child's path."""
    return [sys.executable, "-m", "afd_workers.launch.guard", str(os.getpid()), *command]


def follow(parent: int) -> bool:
    """From now on this process gets SIGTERM when its ``parent`` dies; False when that has happened already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    return os.getppid() == parent


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def main() -> None:
    """Replaces this process by the command; exits with 1 when the parent is gone already."""
    parent, *command = sys.argv[1:]
    if not follow(int(parent)):
        sys.exit(1)
    os.execvpe(command[0], command, os.environ)


if __name__ == "__main__":
    main()
