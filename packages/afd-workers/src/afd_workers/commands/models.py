"""``afd models``: which MoE families are carried, and which refused and why; ``afd models new`` proposes another."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from afd_models.spec import MoE

    Parsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add(parsers: Parsers) -> None:
    """Declares the command line."""
    parser = parsers.add_parser("models", help="list the model families, or propose a new one", description=__doc__)
    parser.set_defaults(run=run, takes_rest=False)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    new = actions.add_parser("new", help="propose a family's declaration from the installed vLLM's text")
    new.add_argument("arch", metavar="ARCH", help="the architecture as config.json names it")
    new.add_argument("--write", metavar="FOLDER", type=Path, help="write the declaration into this folder")
    new.add_argument(
        "--config",
        metavar="FOLDER",
        type=Path,
        help="cut this small checkpoint with it and check both parts (runs vLLM)",
    )
    new.set_defaults(run=propose)


def run(_options: argparse.Namespace, _rest: tuple[str, ...]) -> int:
    """Prints the table."""
    sys.stdout.writelines(f"{line}\n" for line in table())
    return 0


def table() -> list[str]:
    """One line per family: architectures, module, tested range; then the refused ones with their reasons."""
    from afd_models.families import load, refused

    carried = sorted(dict.fromkeys(load().values()), key=lambda spec: spec.arch)
    without = list(dict.fromkeys(refused().values()))
    return [
        *(f"{', '.join(spec.archs)}: {spec.module}, vLLM {spec.vllm}" for spec in carried),
        *(f"{', '.join(each.archs)}: refused, {each.reason}; {each.instead}" for each in without),
    ]


def propose(options: argparse.Namespace, _rest: tuple[str, ...]) -> int:
    """Prints or writes the proposal; 1 where something was not found or a part came out wrong."""
    from afd_compat.snapshot import Snapshot
    from afd_compat.source import Tree
    from afd_models import propose as proposing

    if Tree().read("vllm") is None:
        raise ValueError("Expected an installed vLLM to look at, found none: install the one that is to be declared.")
    proposal = proposing.propose(options.arch, Snapshot(Tree()))
    if proposal.spec is None:
        sys.stderr.writelines(f"afd models: {sentence}\n" for sentence in proposal.missing)
        return 1
    text = proposing.text(proposal.spec)
    if options.write is None:
        sys.stdout.write(text)
    else:
        file = options.write / f"{file_name(options.arch)}.py"
        if file.exists():
            raise ValueError(f"Expected no {file} yet, found one: remove it, or write elsewhere.")
        file.write_text(text)
        sys.stdout.write(f"{file}\n")
    return 0 if options.config is None else _check(proposal.spec, options.config)


def file_name(arch: str) -> str:
    """``qwen3_moe`` for ``Qwen3MoeForCausalLM``."""
    stem = re.sub(r"For(CausalLM|ConditionalGeneration)$", "", arch)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()


def _check(spec: MoE, folder: Path) -> int:
    if not (folder / "config.json").is_file():
        raise ValueError(f"Expected a checkpoint with a config.json in {folder}, found none: name a small one.")
    from afd_models.prove import prove

    sys.stdout.writelines(f"{line}\n" for line in prove(spec, folder))
    return 0
