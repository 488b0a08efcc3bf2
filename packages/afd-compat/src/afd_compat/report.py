"""The table of patches, generated from the declarations so that it cannot be out of date."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from afd_compat.drift import inspect_patch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from afd_compat.declaration import Patch
    from afd_compat.install import Installation
    from afd_compat.source import Tree

HEADINGS = ("target", "vLLM", "how", "when", "processes", "active when", "effect", "until")


@dataclass(frozen=True, slots=True)
class Row:
    """One declaration in words; `state` is empty in documents, which hold for every machine."""

    target: str
    vllm: str
    how: str
    when: str
    processes: str
    active: str
    effect: str
    until: str
    state: str = ""
    holders: tuple[str, ...] = ()

    def cells(self) -> tuple[str, ...]:
        """The columns of HEADINGS."""
        return (
            self.target,
            self.vllm,
            self.how,
            self.when,
            self.processes,
            self.active,
            self.effect,
            self.until,
        )


def rows(patches: Iterable[Patch], installation: Installation | None = None) -> list[Row]:
    """One row per declaration in the order given, with its state in this process if asked."""
    return [_row(patch, installation) for patch in patches]


def against(patches: Iterable[Patch], tree: Tree) -> list[Row]:
    """One row per declaration whose state says whether it fits the vLLM in `tree`; "" means that it does."""
    version = tree.vllm_version()
    return [
        _row(patch, None, "not there yet" if patch.how == "planned" else inspect_patch(patch, tree, version).problem)
        for patch in patches
    ]


def text(table: Sequence[Row]) -> str:
    """The rows for a terminal: one line each for target and state, indented lines for the rest."""
    lines: list[str] = []
    for row in table:
        lines.append(f"{row.target}  [{row.state}]" if row.state else row.target)
        lines.append(f"    {row.how} · vLLM {row.vllm} · {row.when} · {row.processes} · {row.active}")
        lines.append(f"    {row.effect}")
        lines += [f"    until {row.until}"] if row.until else []
        lines += [f"    also rebound: {holder}" for holder in row.holders]
    return "\n".join(lines)


def markdown(table: Sequence[Row]) -> str:
    """The rows as a Markdown table with the columns of HEADINGS, ending in a newline."""
    body = [HEADINGS, ("---",) * len(HEADINGS), *((f"`{row.target}`", *row.cells()[1:]) for row in table)]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n" for cells in body)


def _row(patch: Patch, installation: Installation | None, state: str = "") -> Row:
    return Row(
        target=patch.target,
        vllm=patch.vllm or "-",
        how=f"seam: {patch.seam}" if patch.seam else patch.how,
        when=patch.when if patch.function else "-",
        processes=", ".join(patch.processes),
        active=patch.condition,
        effect=patch.effect,
        until=patch.until,
        state=installation.state(patch) if installation else state,
        holders=installation.holders(patch) if installation else (),
    )
