"""A look-out for imports, so that a module is patched when it comes and not imported for that."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

Callback = Callable[[], None]


class ImportWatch(MetaPathFinder):
    """Calls back once after a module was executed for the first time."""

    def __init__(self) -> None:
        self._callbacks: dict[str, Callback] = {}

    def after(self, module: str, callback: Callback) -> None:
        """Call `callback` when `module` has been imported; one callback per module."""
        self._callbacks[module] = callback
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Forget all callbacks and leave `sys.meta_path`."""
        self._callbacks.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders give for a watched module, with a loader that calls back."""
        if fullname not in self._callbacks:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _CallingLoader(spec.loader, lambda: self._arrived(fullname))
                return spec
        return None

    def _arrived(self, module: str) -> None:
        callback = self._callbacks.pop(module, None)
        if not self._callbacks:
            self.stop()
        if callback is not None:
            callback()


class _CallingLoader(Loader):
    """Hands everything to the real loader, which it puts back in its own place before the module runs."""

    def __init__(self, inner: Loader, callback: Callback) -> None:
        self._inner = inner
        self._callback = callback

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        module.__loader__ = self._inner
        self._inner.exec_module(module)
        self._callback()
