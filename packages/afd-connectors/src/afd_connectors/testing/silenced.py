"""FFN ranks that take what comes and answer nothing, as those of a process that computes for ever."""

from __future__ import annotations

import threading

from afd_connectors.ports import Work
from afd_connectors.testing.group import Group


class Silenced:
    """Lets FFN ranks compute for ever; what they have not answered they must not go on from."""

    def __init__(self, group: Group) -> None:
        self.taken, self.free = threading.Event(), threading.Event()
        self._group, self._native = group, group.compute
        group.compute = self._compute

    def end(self) -> None:
        """They compute as before, from the next exchange on."""
        self.free.set()
        self._group.compute = self._native

    def _compute(self, _rank: int, _work: Work) -> None:
        self.taken.set()
        assert self.free.wait(30)
