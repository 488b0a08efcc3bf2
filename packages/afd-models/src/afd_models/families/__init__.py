"""All declared MoE families, found by architecture name; one file here adds one."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType

from afd_models.spec import MoE, Refused

_WRAPPER = "ForConditionalGeneration"


def load() -> Mapping[str, MoE]:
    """Architecture name -> declaration, from every ``MODEL`` in this folder; ValueError for two claims on one name."""
    found: dict[str, MoE] = {}
    for file in _files():
        model: MoE | None = getattr(file, "MODEL", None)
        for arch in model.archs if model is not None else ():
            assert model is not None
            if arch in found:
                raise ValueError(
                    f"Expected one declaration per architecture, found two for {arch} "
                    f"({found[arch].module} and {model.module}): remove one of them from afd_models/families."
                )
            found[arch] = model
    return found


def declared_in(arch: str) -> str | None:
    """The file that declares ``arch``, None where none does."""
    for file in _files():
        model: MoE | None = getattr(file, "MODEL", None)
        if model is not None and arch in model.archs:
            return f"{file.__name__.replace('.', '/')}.py"
    return None


def refused() -> Mapping[str, Refused]:
    """Architecture name -> why it is not carried, from every ``REFUSED`` in this folder."""
    entries: Iterator[Refused] = (entry for file in _files() for entry in getattr(file, "REFUSED", ()))
    return {arch: entry for entry in entries for arch in entry.archs}


def find(architectures: Iterable[str]) -> tuple[str, MoE]:
    """The first declared architecture among ``architectures`` and its declaration; ValueError when there is none."""
    known, wanted = load(), list(architectures)
    for arch in wanted:
        if arch in known:
            return arch, known[arch]
    without = refused()
    for arch in wanted:
        if arch in without:
            raise ValueError(without[arch].sentence(arch))
    raise ValueError(
        f"Expected a model of a declared family ({', '.join(sorted(known))}), found {', '.join(wanted) or 'none'}"
        f"{_hint(wanted)}: serve one of these, or declare the family in afd_models/families as CONTRIBUTING.md shows."
    )


def _hint(wanted: Iterable[str]) -> str:
    """What a multimodal wrapper is, since its name hardly differs from that of the text model inside."""
    wrapper = any(arch.endswith(_WRAPPER) for arch in wanted)
    return ", which wraps a text model and is not declared as the text model inside it may be" if wrapper else ""


def _files() -> Iterator[ModuleType]:
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda each: each.name):
        yield importlib.import_module(f"{__name__}.{info.name}")
