"""Ranks in processes of their own that a test drives call by call, so that it can end one between any two."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from afd_connectors.layout import Role
from afd_connectors.testing import children
from afd_connectors.testing.group import Group, within

# A fork of a server that has imported torch and done nothing else: as fresh as a new interpreter, 100 times as fast.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([children.__name__])
START_S = 60.0


class Child:
    """One rank. It is open when this returns, and does nothing that it is not told."""

    def __init__(self, group: Group, role: Role, rank: int = 0) -> None:
        self.who = f"{role} rank {rank}"
        self._orders, theirs = _CONTEXT.Pipe()
        connector = group.build(role, rank)
        self._process = _CONTEXT.Process(target=children.run, args=(connector, group.device, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.reply(START_S)

    def tell(self, name: str, *arguments: object) -> None:
        """Gives an order without waiting for its end."""
        self._orders.send((name, *arguments))

    def reply(self, seconds: float = 20.0) -> None:
        """Waits for the end of an order; AssertionError with what went wrong there."""
        assert self._orders.poll(seconds), f"{self.who} did not finish its order within {seconds:g} s"
        try:
            fault = self._orders.recv()
        except (EOFError, ConnectionResetError):
            raise AssertionError(f"the process of {self.who} ended with status {self._process.exitcode}") from None
        assert fault == children.DONE, f"{self.who}: {fault}"

    def ask(self, name: str, *arguments: object) -> None:
        """Gives an order and waits for its end."""
        self.tell(name, *arguments)
        self.reply()

    def kill(self) -> None:
        """kill -9, over when the process is gone."""
        self._process.kill()
        self._process.join(10)
        assert self._process.exitcode == -signal.SIGKILL, f"{self.who} ended with status {self._process.exitcode}"
        self._orders.close()

    def stop(self) -> None:
        """SIGSTOP, over when every thread of the process stands still."""
        os.kill(self._pid, signal.SIGSTOP)
        assert within(10, lambda: "(stopped)" in Path(f"/proc/{self._pid}/status").read_text())

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self._pid, signal.SIGCONT)

    def end(self) -> None:
        """Ends whatever is left of it."""
        if self._process.is_alive():
            self.kill()

    @property
    def _pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid


class Processes:
    """The processes of one test."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._started: list[Child] = []

    def ffn(self, rank: int = 0, *, serving: bool = False) -> Child:
        """An FFN rank; serving: answering what comes already."""
        child = self._start("ffn", rank)
        if serving:
            child.tell("serve")
        return child

    def attention(self, rank: int = 0) -> Child:
        """An attention rank, connected."""
        return self._start("attention", rank)

    def end(self) -> None:
        """Ends all of them."""
        for child in self._started:
            child.end()

    def _start(self, role: Role, rank: int) -> Child:
        child = Child(self._group, role, rank)
        self._started.append(child)
        return child


@contextmanager
def processes_of(group: Group) -> Iterator[Processes]:
    """Processes whose ranks are those of `group`, ended with the `with`."""
    started = Processes(group)
    try:
        yield started
    finally:
        started.end()
