"""A second network namespace joined to this one by a cable that can be cut: two hosts on one machine."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import subprocess
from pathlib import Path
from types import TracebackType

MARK = "needs_netns"
_NAMED = Path("/run/netns")  # where the command ip keeps namespaces
_PREFIX = "afd-"
_CLONE_NEWNET = 0x40000000
_RUN_S = 10


class Cable:
    """A context manager. name: the namespace behind the cable; here, there: the addresses of its two ends.

    Servers behind it are started with ``prefix``. It takes root.
    """

    def __init__(self) -> None:
        self.name = _name(os.getpid())
        self.prefix = ("ip", "netns", "exec", self.name)
        self._plug = _plug(os.getpid())
        # A network of four addresses for each process, so that two test runs do not meet.
        block = f"10.{200 + (os.getpid() >> 14) % 32}.{(os.getpid() >> 6) % 256}"
        self.here, self.there = (f"{block}.{os.getpid() % 64 * 4 + end}" for end in (1, 2))

    def __enter__(self) -> Cable:
        inside = ("-n", self.name)
        _remove_stale()
        try:
            _ip("netns", "add", self.name)
            _ip("link", "add", self._plug, "type", "veth", "peer", "name", "afd0", "netns", self.name)
            _ip("addr", "add", f"{self.here}/30", "dev", self._plug)
            _ip("link", "set", self._plug, "up")
            _ip(*inside, "addr", "add", f"{self.there}/30", "dev", "afd0")
            _ip(*inside, "link", "set", "afd0", "up")
            _ip(*inside, "link", "set", "lo", "up")
        except BaseException:
            _remove(os.getpid())
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        _remove(os.getpid())

    def cut(self) -> None:
        """Nothing goes through any more; no connection is told."""
        _ip("link", "set", self._plug, "down")

    def mend(self) -> None:
        """As before the cut."""
        _ip("link", "set", self._plug, "up")


@functools.cache
def lacking() -> str | None:
    """Why this machine allows no Cable, None when it does."""
    try:
        with Cable():
            return None
    except FileNotFoundError:
        return "the command ip is not installed"
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)} failed: {error.stderr.strip()}"
    except subprocess.TimeoutExpired as error:
        return f"{' '.join(error.cmd)} did not end within {error.timeout:g} s"


def enter(name: str) -> None:
    """Moves the calling thread, and those that it starts from now on, into a namespace."""
    with (_NAMED / name).open() as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"could not enter the network namespace {name}")


def _name(pid: int) -> str:
    return f"{_PREFIX}{pid}"


def _plug(pid: int) -> str:
    return f"afd{pid}"


def _remove_stale() -> None:
    """Takes away what test runs that were killed left behind."""
    for left in _NAMED.glob(f"{_PREFIX}*"):
        pid = int(left.name.removeprefix(_PREFIX))
        if not Path(f"/proc/{pid}").exists():
            _remove(pid)


def _remove(pid: int) -> None:
    """The plug goes first: a namespace and what is in it live as long as a process is in there."""
    for words in (("link", "del", _plug(pid)), ("netns", "del", _name(pid))):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            _ip(*words)


def _ip(*words: str) -> None:
    subprocess.run(("ip", *words), check=True, capture_output=True, text=True, timeout=_RUN_S)
