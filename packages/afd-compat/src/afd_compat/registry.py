"""Collects the declarations of this package and of others, so that nobody keeps a list of patches by hand."""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
from types import ModuleType
from typing import Final

from afd_compat import patches
from afd_compat.declaration import Patch

GROUP: Final = "afd.patches"


def declared() -> tuple[Patch, ...]:
    """Every declaration, in order of declaration: ours, then those of the entry point group `afd.patches`.

    An entry point names a module; its module-level `Patch` objects count. Raises TypeError for one that names
    something else.
    """
    names = sorted(info.name for info in pkgutil.iter_modules(patches.__path__))
    modules = [importlib.import_module(f"{patches.__name__}.{name}") for name in names]
    for point in _points():
        module = point.load()
        if not isinstance(module, ModuleType):
            raise TypeError(f"Entry point {point.name!r} of {GROUP} must name a module, but it is {point.value!r}.")
        modules.append(module)
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Patch)]
    return tuple(dict.fromkeys(found))


def _points() -> list[importlib.metadata.EntryPoint]:
    """The entry points of our group by name; each vLLM process pays for this, so only files that name it are parsed."""
    found: dict[str, importlib.metadata.EntryPoint] = {}
    for distribution in importlib.metadata.distributions():
        if f"[{GROUP}]" in (distribution.read_text("entry_points.txt") or ""):
            for point in distribution.entry_points.select(group=GROUP):
                found.setdefault(point.name, point)  # the first on the path is the one that is imported
    return [found[name] for name in sorted(found)]
