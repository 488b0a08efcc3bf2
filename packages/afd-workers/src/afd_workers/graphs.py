"""Which steps an FFN rank runs from graphs: one graph per key, captured when its attention rank captures its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from afd_connectors.stepped import Gathered

log = logging.getLogger("afd.workers")

#: Sizes of several attention ranks that met; what meets after that many runs eagerly.
MOST_COMPOSED = 512
#: Per attention rank, ascending: its rank, its connection's epoch, and its rows per stage.
Key = tuple[tuple[int, int, tuple[int, ...]], ...]
Call = Callable[[], None]


def key_of(gathered: Gathered) -> Key:
    """Equal exactly for steps that move the same rows over the same connections, in whatever order they came."""
    return tuple(sorted((member.rank, member.epoch, member.step.tokens) for member in gathered.members))


@dataclass(slots=True)
class Figures:
    """How the steps of a rank ran.

    missing: replayed by every attention rank and not captured here; composed: captured when they were replayed, because
    attention ranks whose steps were captured one by one were served together, or attention outlasted this rank.
    """

    eager: int = 0
    captured: int = 0
    replayed: int = 0
    missing: int = 0
    composed: int = 0


class Steps:
    """Runs gathered steps, from graphs where there are some.

    forward: enqueues a whole step, its transfers included. capture: records what a call enqueues, returns what
    replays it. new_pool: called when no graph is left, so that the next one begins with memory of its own. drop: called
    with what `capture` returned, once it is replayed no more. lasting: attention ranks replay what they captured with
    this rank's predecessor, so it is captured when it comes.
    """

    def __init__(
        self, forward: Callable[[Gathered], None], capture: Callable[[Call], Call], new_pool: Call = lambda: None,
        drop: Callable[[Call], None] = lambda _call: None, *, lasting: bool = False,
    ) -> None:  # fmt: skip
        self.figures = Figures()
        self._forward, self._capture, self._new_pool, self._lasting = forward, capture, new_pool, lasting
        self._drop = drop
        self._graphs: dict[Key, Call] = {}
        self._warned: set[Key] = set()

    def run(self, gathered: Gathered) -> None:
        """Enqueues one step, or records it where the attention rank only records."""
        key = key_of(gathered)
        if gathered.capture:
            # An attention rank captures its largest sizes twice: to measure memory, and to keep them.
            if key not in self._graphs:
                self._graphs[key] = self._capture(lambda: self._forward(gathered))
                self.figures.captured += 1
            return
        graph = self._graphs.get(key) if gathered.replay else None
        if graph is not None:
            self.figures.replayed += 1
            graph()
            return
        self.figures.eager += 1
        self._forward(gathered)
        if gathered.replay:
            if self._composable(key):
                self._graphs[key] = self._capture(lambda: self._forward(gathered))
                self.figures.composed += 1
            else:
                self._miss(key)

    def keep(self, epochs: Mapping[int, int]) -> bool:
        """Drops what was captured over connections that are gone; whether anything was."""
        stale = [key for key in self._graphs if not _current(key, epochs)]
        for key in stale:
            self._drop(self._graphs.pop(key))
        if stale:
            log.info("AFD FFN dropped %d graphs of attention ranks that left", len(stale))
            if not self._graphs:
                self._new_pool()
        return bool(stale)

    def stale(self, epochs: Mapping[int, int]) -> bool:
        """Whether `keep` would drop anything."""
        return any(not _current(key, epochs) for key in self._graphs)

    def keys(self) -> Iterable[Key]:
        """What is captured."""
        return tuple(self._graphs)

    def _composable(self, key: Key) -> bool:
        """Whether its attention ranks have graphs of their parts, as they told or as lasts, and there is room."""
        composed = sum(len(each) > 1 for each in self._graphs)
        if composed >= MOST_COMPOSED:
            return False
        return self._lasting or all((part,) in self._graphs for part in key)

    def _miss(self, key: Key) -> None:
        self.figures.missing += 1
        if key not in self._warned:
            self._warned.add(key)
            log.warning("AFD FFN has no graph for a step that attention replays, so it runs eagerly: %s", key)


def _current(key: Key, epochs: Mapping[int, int]) -> bool:
    return all(epochs.get(rank) == epoch for rank, epoch, _ in key)
