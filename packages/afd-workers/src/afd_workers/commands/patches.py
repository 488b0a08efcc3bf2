"""``afd patches``: every patch to vLLM that AFD declares, and whether it fits."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Parsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add(parsers: Parsers) -> None:
    """Declares the command line."""
    parser = parsers.add_parser("patches", help="list the patches to vLLM and whether they fit", description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="print the table as in docs/patches.md")
    parser.add_argument(
        "--against", metavar="WHEEL", type=Path, help="check this vLLM wheel or folder, not the installed one"
    )
    parser.set_defaults(run=run, takes_rest=False)


def run(options: argparse.Namespace, _rest: tuple[str, ...]) -> int:
    """Prints the table; 1 when a patch does not fit the vLLM in question, which is not imported."""
    from afd_compat import registry, report
    from afd_compat.source import Tree, open_tree

    patches = registry.declared()
    if options.markdown:
        sys.stdout.write(report.markdown(report.rows(patches)))
        return 0
    tree = open_tree(options.against) if options.against else Tree()
    rows = report.against(patches, tree)
    sys.stdout.write(f"{report.text(rows)}\nvLLM {tree.vllm_version() or 'is not installed'}\n")
    return 1 if any(row.state for row in rows) else 0
