"""``afd patches``: every patch to vLLM that AFD declares, and whether it fits; with --against, what a vLLM changed."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afd_compat.compare import Change
    from afd_compat.snapshot import Snapshot

    Parsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add(parsers: Parsers) -> None:
    """Declares the command line."""
    parser = parsers.add_parser(
        "patches", help="list the patches to vLLM and whether they fit", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--markdown", action="store_true", help="print the table as in docs/patches.md")
    parser.add_argument(
        "--against", metavar="WHEEL", type=Path, help="say what this vLLM wheel or folder changed and whether it fits"
    )
    parser.add_argument(
        "--base", metavar="WHEEL", type=Path, help="compare with this wheel or folder, not with the installed vLLM"
    )
    parser.add_argument("--brief", action="store_true", help="leave the differences out")
    parser.set_defaults(run=run, takes_rest=False)


def run(options: argparse.Namespace, _rest: tuple[str, ...]) -> int:
    """Prints the table; 1 when something does not fit the vLLM in question, which is not imported."""
    if options.against is None and (options.base or options.brief):
        raise ValueError("--base and --brief belong to --against, found no --against: name the vLLM to look at.")
    if options.against and options.markdown:
        raise ValueError("--markdown is a table of the installed vLLM, found it beside --against: leave one out.")
    if options.against:
        return against(options.against, options.base, brief=options.brief)
    from afd_compat import registry, report
    from afd_compat.source import Tree

    patches = registry.declared()
    if options.markdown:
        sys.stdout.write(report.markdown(report.rows(patches)))
        return 0
    rows = report.against(patches, Tree())
    shown = [replace(row, state=row.state or "fits") for row in rows]
    sys.stdout.write(f"{report.text(shown)}\nvLLM {Tree().vllm_version() or 'is not installed'}\n")
    return 1 if any(row.state and row.how != "planned" for row in rows) else 0


def against(where: Path, base: Path | None, *, brief: bool) -> int:
    """Prints what became of every patch's target and every model's cut; 1 where something does not fit."""
    from afd_compat.snapshot import Snapshot
    from afd_compat.source import Tree, open_tree

    start = time.perf_counter()
    new = Snapshot(open_tree(where))
    tree = open_tree(base) if base else Tree()
    old = Snapshot(tree) if tree.read("vllm") is not None else None
    found = list(changes(old, new))
    than = f"vLLM {old.version}" if old else "nothing but the pins, as no vLLM is installed and --base names none"
    for change in found:
        note = f" ({change.note})" if change.note else ""
        sys.stdout.write(f"{'' if change.fits else 'DOES NOT FIT '}{change.subject}: {change.verdict}{note}\n")
        if change.diff and not brief:
            sys.stdout.write("".join(f"    {line}\n" for line in change.diff.splitlines()))
    bad = sum(not change.fits for change in found)
    sys.stdout.write(
        f"vLLM {new.version or 'of no stated version'} beside {than}: {bad} of {len(found)} do not fit, "
        f"{time.perf_counter() - start:.1f} s\n"
    )
    return 1 if bad else 0


def changes(old: Snapshot | None, new: Snapshot) -> Iterator[Change]:
    """All patches, then all models."""
    from afd_compat import registry
    from afd_compat.compare import compare_patch
    from afd_models.drift import compare_cut
    from afd_models.families import load

    yield from (compare_patch(patch, old, new) for patch in registry.declared())
    families = dict.fromkeys(load().values())
    yield from (compare_cut(spec, old, new) for spec in families)
