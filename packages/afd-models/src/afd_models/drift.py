"""Whether a family's cut still finds what it names in another vLLM, from that vLLM's text alone."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from afd_compat.compare import Change, difference, unreadable

if TYPE_CHECKING:
    from afd_compat.snapshot import Snapshot
    from afd_models.spec import MoE


def compare_cut(spec: MoE, old: Snapshot | None, new: Snapshot) -> Change:
    """How the cut of `spec` fares on `new`, beside `old`, a vLLM that it was tested with.

    Its "signature" are the names that it rebinds and the attributes that it relies on.
    """
    subject = f"{spec.module} ({spec.arch})"
    try:
        found = new.module(spec.module)
        then, now = (None if each is None else each.cleaned_module(spec.module) for each in (old, new))
    except SyntaxError as error:
        return Change(subject, "broken", False, unreadable(error))
    if found is None:
        return Change(subject, "gone", fits=False)
    missing = _missing(spec, found[1])
    diff = difference(then, now)
    if missing:
        return Change(subject, "broken", False, f"not found: {', '.join(missing)}", diff)
    return Change(subject, "same" if then == now else "signature same, body changed", True, diff=diff)


def _missing(spec: MoE, module: ast.Module) -> list[str]:
    """What the cut names and this module does not have."""
    nodes = list(ast.walk(module))
    defined = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    looked_up = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    return [
        *(f"class {name}" for name in spec.archs if name not in defined),
        *(f"a use of {name}" for name in spec.rebound if name not in looked_up),
        *(f"self.{name}" for name in (spec.ffn, spec.inner) if name not in attributes),
    ]
