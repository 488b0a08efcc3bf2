"""``afd doctor``: what is installed here and whether AFD can run with it, without starting vLLM."""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    Parsers = argparse._SubParsersAction[argparse.ArgumentParser]

PACKAGES: Final = ("afd", "afd-compat", "afd-connectors", "afd-models", "afd-workers", "afd-npu")


def add(parsers: Parsers) -> None:
    """Declares the command line."""
    parser = parsers.add_parser(
        "doctor", help="say whether AFD can run with what is installed", description=__doc__, allow_abbrev=False
    )
    parser.set_defaults(run=run, takes_rest=False)


def run(_options: argparse.Namespace, _rest: tuple[str, ...]) -> int:
    """Prints one line per finding; 1 when AFD would refuse to start."""
    from afd_compat import install, registry
    from afd_compat.drift import ALLOW, sentence

    found = install.Installation(registry.declared())
    found.undo()
    problems, accepted = found.problems(), found.accepted()
    lines = [
        f"vLLM: {found.version or 'not installed'}",
        *(f"{name}: {_version(name)}" for name in PACKAGES),
        f"plugin: {_plugin()}",
        *(f"{ALLOW} accepts: {text}" for text in accepted),
        sentence(problems)
        if problems
        else f"patches: {len(found.findings) - len(accepted)} of {len(found.findings)} fit",
    ]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 1 if problems or not _plugin().startswith("found") else 0


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _plugin() -> str:
    """Whether vLLM will load AFD: its entry point is there and VLLM_PLUGINS does not leave it out."""
    import os

    points = importlib.metadata.entry_points(group="vllm.general_plugins", name="afd")
    if not points:
        return "not found by vLLM; install this checkout as README.md says"
    named = os.environ.get("VLLM_PLUGINS")
    if named is not None and "afd" not in named.split(","):
        return f"left out by VLLM_PLUGINS={named}; add afd to it"
    return "found by vLLM"
