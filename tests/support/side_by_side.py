"""Runs a test for several connectors at once: tests that mostly wait take the time of one then."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor


def side_by_side(test: Callable[[str], None], names: Iterable[str]) -> None:
    """Each on a thread of its own; the failures of all, each with the name that it came with."""
    chosen = list(names)
    with ThreadPoolExecutor(len(chosen)) as pool:
        running: dict[str, Future[None]] = {name: pool.submit(test, name) for name in chosen}
    failures = []
    for name, one in running.items():
        error = one.exception()
        if error is not None:
            error.add_note(f"with {name}")
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise BaseExceptionGroup("with several connectors", failures)
