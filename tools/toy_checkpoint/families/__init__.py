"""Toy checkpoints, one file per family; each file's ``TOYS`` maps names to toys."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from tools.toy_checkpoint.parts import Toy


def load() -> Mapping[str, Toy]:
    """All toys by name."""
    found: dict[str, Toy] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda each: each.name):
        found.update(importlib.import_module(f"{__name__}.{info.name}").TOYS)
    return found
