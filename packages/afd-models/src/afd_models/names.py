"""Where the names of a declaration are bound: in modules, or in the bodies of their classes."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from types import ModuleType


class Names:
    """Modules as holders of names; ``Class.attribute`` is held by the class."""

    def __init__(self, modules: Iterable[str]) -> None:
        self._modules: tuple[ModuleType, ...] = tuple(map(importlib.import_module, modules))

    def places(self, name: str) -> tuple[tuple[object, str], ...]:
        """Every (holder, attribute) that ``name`` means."""
        parent, _, attribute = name.rpartition(".")
        holders: Iterable[object] = self._modules
        if parent:
            holders = (getattr(module, parent) for module in self._modules if hasattr(module, parent))
        return tuple((holder, attribute) for holder in holders if hasattr(holder, attribute))

    def native(self, name: str) -> object:
        """What ``name`` is bound to, which must be held."""
        native: object = getattr(*self.places(name)[0])
        return native
