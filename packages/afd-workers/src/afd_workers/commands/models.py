"""``afd models``: which MoE families are carried, and which refused and why; ``afd models new`` proposes another."""

from __future__ import annotations

import argparse
import re
import reprlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from afd_compat import json_file

if TYPE_CHECKING:
    from afd_compat.source import Tree
    from afd_models.spec import MoE

    Parsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add(parsers: Parsers) -> None:
    """Declares the command line."""
    parser = parsers.add_parser(
        "models", usage="afd models [-h] [ACTION ...]", help="list the model families, or propose a new one",
        description=__doc__, allow_abbrev=False,
    )  # fmt: skip
    parser.set_defaults(run=run, takes_rest=False)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", prog="afd models")
    new = actions.add_parser(
        "new", help="propose a family's declaration from the installed vLLM's text", allow_abbrev=False
    )
    new.add_argument("arch", metavar="ARCH", help="the architecture as config.json names it")
    new.add_argument("--write", metavar="FOLDER", type=Path, help="write the declaration into this folder")
    new.add_argument(
        "--config",
        metavar="FOLDER",
        type=Path,
        help="cut this small checkpoint with it and check both parts (runs vLLM)",
    )
    new.set_defaults(run=propose)
    every = actions.add_parser(
        "all", help="every architecture with experts that the installed vLLM has", allow_abbrev=False
    )
    every.set_defaults(run=survey)


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


def survey(_options: argparse.Namespace, _rest: tuple[str, ...]) -> int:
    """Prints a line per architecture: declared, refused, or what ``afd models new`` makes of it."""
    from afd_compat.snapshot import Snapshot
    from afd_models.survey import survey as surveying

    for row in surveying(Snapshot(_installed())):
        sys.stdout.write(f"{row.arch}: {row.state}{', ' if row.note else ''}{row.note}\n")
    return 0


def _installed() -> Tree:
    """The installed vLLM; ValueError where there is none."""
    from afd_compat.source import Tree

    tree = Tree()
    if tree.read("vllm") is None:
        raise ValueError("Expected an installed vLLM to look at, found none: install the one that is to be declared.")
    return tree


def propose(options: argparse.Namespace, _rest: tuple[str, ...]) -> int:
    """Prints or writes the proposal; 1 where something was not found or a part came out wrong."""
    from afd_compat.snapshot import Snapshot
    from afd_models import propose as proposing

    _check_new(options.arch)
    if options.write is not None and not options.write.is_dir():
        raise ValueError(f"Expected a folder that exists for --write, found {str(options.write)!r}: create it first.")
    if options.config is not None:
        _check_config(options.arch, options.config)
    proposal = proposing.propose(options.arch, Snapshot(_installed()))
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


def _check_new(arch: str) -> None:
    """ValueError for an architecture that is declared, or refused."""
    from afd_models.families import declared_in, refused

    file, without = declared_in(arch), refused().get(arch)
    if file is not None:
        raise ValueError(
            f"Expected an architecture without a declaration, found {arch}, declared in {file}: edit or remove it."
        )
    if without is not None:
        raise ValueError(without.sentence(arch))


def _check_config(arch: str, folder: Path) -> None:
    """ValueError unless ``folder`` has a checkpoint of ``arch``."""
    file = folder / "config.json"
    if not file.is_file():
        raise ValueError(f"Expected a checkpoint with a config.json in {folder}, found none: name a small one.")
    config = json_file.read(file, f"JSON in {file}, found none", "name a checkpoint's folder")
    found = config.get("architectures") if isinstance(config, dict) else config
    if not isinstance(config, dict) or not isinstance(found, list) or arch not in found:
        raise ValueError(
            f"Expected {arch} among the architectures in {file}, found {reprlib.repr(found)}: name a checkpoint of "
            "that architecture."
        )


def _check(spec: MoE, folder: Path) -> int:
    from afd_models.postconditions import CutError
    from afd_models.prove import prove

    try:
        sys.stdout.writelines(f"{line}\n" for line in prove(spec, folder))
    except CutError as error:
        sys.stderr.write(f"afd models: {error}\n")
        return 1
    except Exception as error:  # noqa: BLE001 - whatever vLLM raises where a model does not fit it
        sys.stderr.write(
            f"afd models: Expected vLLM to build {spec.arch} and its parts from {folder}, found {_last(error)!r}: "
            "correct the checkpoint or the declaration.\n"
        )
        return 1
    return 0


def _last(error: Exception) -> str:
    """The last line that says something; pydantic ends with where to read on."""
    lines = [line.strip() for line in str(error).splitlines() if not line.strip().startswith("For further information")]
    return next((line for line in reversed(lines) if line), type(error).__name__)
