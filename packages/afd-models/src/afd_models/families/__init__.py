"""All declared MoE families, found by architecture name; one file here adds one."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping

from afd_models.spec import MoE


def load() -> Mapping[str, MoE]:
    """Architecture name -> declaration, from every ``MODEL`` in this folder; ValueError for two claims on one name."""
    found: dict[str, MoE] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda i: i.name):
        model = importlib.import_module(f"{__name__}.{info.name}").MODEL
        for arch in model.archs:
            if arch in found:
                raise ValueError(
                    f"Expected one declaration per architecture, found two for {arch} "
                    f"({found[arch].module} and {model.module}): remove one of them from afd_models/families."
                )
            found[arch] = model
    return found


def find(architectures: Iterable[str]) -> tuple[str, MoE]:
    """The first declared architecture among ``architectures`` and its declaration; ValueError when there is none."""
    known = load()
    wanted = list(architectures)
    for arch in wanted:
        if arch in known:
            return arch, known[arch]
    raise ValueError(
        f"Expected a model of a declared family ({', '.join(sorted(known))}), found {', '.join(wanted) or 'none'}: "
        "serve one of these, or declare the family in afd_models/families as CONTRIBUTING.md shows."
    )
