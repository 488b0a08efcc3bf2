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
        found = [new.module(module) for module in spec.modules]
        then, now = (None if each is None else _text(spec, each) for each in (old, new))
    except SyntaxError as error:
        return Change(subject, "broken", False, unreadable(error))
    parsed = [module[1] for module in found if module is not None]
    if len(parsed) < len(found):
        return Change(subject, "gone", fits=False)
    missing = _missing(spec, parsed)
    diff = difference(then, now)
    if missing:
        return Change(subject, "broken", False, f"not found: {', '.join(missing)}", diff)
    return Change(subject, "same" if then == now else "signature same, body changed", True, diff=diff)


def _text(spec: MoE, snapshot: Snapshot) -> str | None:
    """The cleaned text of all modules, None where one is not there."""
    texts = [snapshot.cleaned_module(module) for module in spec.modules]
    return None if None in texts else "\n".join(text for text in texts if text is not None)


def _missing(spec: MoE, modules: list[ast.Module]) -> list[str]:
    """What the cut names and none of these modules has."""
    nodes = [node for module in modules for node in ast.walk(module)]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    defined = {node.name for node in classes}
    looked_up = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    looked_up |= {f"{node.name}.{attribute}" for node in classes for attribute in _own(node)}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    return [
        *(f"class {name}" for name in spec.archs if name not in defined),
        *(f"a use of {name}" for name in spec.rebound if name not in looked_up),
        *(f"self.{name}" for name in (spec.ffn, spec.inner) if name not in attributes),
    ]


def _own(defined: ast.ClassDef) -> set[str]:
    """Attributes that a class body binds and its methods look up."""
    bodies = [node for node in defined.body if isinstance(node, ast.AnnAssign | ast.Assign)]
    targets = [
        target for node in bodies for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    bound = {target.id for target in targets if isinstance(target, ast.Name)}
    return bound & {node.attr for node in ast.walk(defined) if isinstance(node, ast.Attribute)}
