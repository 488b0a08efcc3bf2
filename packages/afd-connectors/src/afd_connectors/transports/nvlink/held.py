"""What is to be given back, each of it once: CUDA may fail halfway, and the next try must not repeat the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from afd_connectors.errors import ConnectorError


@dataclass(slots=True)
class Held:
    """By name, how each thing is given back, and the thing that has to be gone before it, if there is one."""

    _things: dict[str, tuple[Callable[[], None], str | None]] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self._things

    def keep(self, name: str, undo: Callable[[], None], after: str | None = None) -> None:
        """Something more to be given back."""
        assert name not in self._things, f"{name} is held already"
        self._things[name] = undo, after

    def give_back(self, *names: str) -> None:
        """Those of the named things that are held, in this order, and all of them that can be.

        ConnectorError of the first that could not be given back; that and what waits for it are held on.
        """
        first: ConnectorError | None = None
        for name in names:
            undo, after = self._things.get(name, (None, None))
            if undo is None or after in self._things:
                continue
            try:
                undo()
            except ConnectorError as error:
                first = first or error
            else:
                del self._things[name]
        if first is not None:
            raise first
