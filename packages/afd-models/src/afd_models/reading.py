"""Reads vLLM's model files as text: which class makes its experts, which decoder layer that class, and what else."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from afd_compat.snapshot import Snapshot

_MODELS = "vllm.model_executor.models"
_EXPERTS = "vllm.model_executor.layers.fused_moe"
#: The interface by which vLLM balances experts; not every model with experts has it.
_MIXTURE = "MixtureOfExperts"
#: Modules of the models' folder that hold no model.
_NO_MODELS = ("interfaces", "interfaces_base", "utils", "registry")


class File:
    """One model file: its classes, and those that it imports from other model files."""

    def __init__(self, name: str, snapshot: Snapshot) -> None:
        found = snapshot.module(name)
        if found is None:
            raise ValueError(f"Expected vLLM {snapshot.version} to have {name}, found no such file: install it whole.")
        self.name = name
        self._tree = found[1]
        self.imported: dict[str, str] = dict(_imported(self._tree, name))
        self.classes = {node.name: node for node in self._tree.body if isinstance(node, ast.ClassDef)}
        self.all = dict(self.classes)
        for other in dict.fromkeys(self.imported.values()):
            module = snapshot.module(other) if _is_model(other) else None
            defined = [node for node in module[1].body if isinstance(node, ast.ClassDef)] if module else []
            self.all.update({node.name: node for node in defined if self.imported.get(node.name) == other})

    def used(self, name: str) -> dict[str, ast.ClassDef]:
        """The classes of this file that class ``name`` leads to by the names in its body, itself among them."""
        found: dict[str, ast.ClassDef] = {}
        queue = [name] if name in self.classes else []
        while queue:
            current = queue.pop()
            node = found[current] = self.classes[current]
            named = dict.fromkeys(each.id for each in ast.walk(node) if isinstance(each, ast.Name))
            queue += [each for each in named if each in self.classes and each not in found]
        return found

    def bases(self, name: str) -> tuple[str, ...]:
        """The model files whose classes are bases of those that class ``name`` leads to."""
        bases = [base.id for node in self.used(name).values() for base in node.bases if isinstance(base, ast.Name)]
        return tuple(dict.fromkeys(self.imported[base] for base in bases if _is_model(self.imported.get(base, ""))))

    def mixes_experts(self, name: str) -> bool:
        """Whether class ``name`` is one of vLLM's mixtures of experts, as far as this file and those it imports say."""
        bases = [base.id for base in getattr(self.all.get(name), "bases", ()) if isinstance(base, ast.Name)]
        return any(base == _MIXTURE or (base != name and self.mixes_experts(base)) for base in bases)


@dataclass(frozen=True, slots=True)
class Block:
    """A class with experts. inner, factory: ``self.<inner> = <factory>(...)``; shared: classes of shared experts."""

    name: str
    inner: str
    factory: str
    hands_gate_on: bool
    shared: tuple[str, ...]
    gates: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """A decoder layer. block: how it names a sparse FFN's class; made: what it makes, by attribute."""

    name: str
    ffn: str
    block: str
    made: Mapping[str, tuple[str, ...]]


def sparse(file: File) -> Iterator[Block]:
    """Every class that makes experts with a name of vLLM's fused_moe layers."""
    for node in file.all.values():
        for attribute, call in _assigned(node):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            if file.imported.get(name, "").startswith(_EXPERTS) or (node.name not in file.classes and "MoE" in name):
                keywords = {each.arg: each.value for each in call.keywords}
                if "num_experts" not in keywords:
                    continue  # not a factory of experts
                attributes = made(node)
                gate, shared = keywords.get("gate"), keywords.get("shared_experts")
                yield Block(
                    name=node.name,
                    inner=attribute,
                    factory=name,
                    hands_gate_on=gate is not None,
                    shared=attributes.get(shared.attr, ()) if isinstance(shared, ast.Attribute) else (),
                    gates=tuple(each for each in attributes if each.endswith("gate")),
                )


def layers(file: File, block: Block, arch: str) -> Iterator[Layer]:
    """Every class that ``arch`` leads to and that makes itself such a block."""
    for node in file.used(arch).values():
        attributes = made(node)
        for attribute, names in attributes.items():
            for name in names:
                if _resolved(node, name) == block.name:
                    yield Layer(node.name, attribute, name, attributes)


def made(node: ast.ClassDef) -> dict[str, tuple[str, ...]]:
    """Attribute -> names of what ``__init__`` may make for it; ``Class.attribute`` for a name of the class's body."""
    found: dict[str, list[str]] = {}
    local = dict(_locals(node))
    for attribute, call in _assigned(node):
        match call.func:
            case ast.Name(name) if name in local or name[0].isupper():
                found.setdefault(attribute, []).extend(local.get(name, [name]))
            case ast.Attribute(ast.Name("self"), name):
                found.setdefault(attribute, []).append(f"{node.name}.{name}")
            case ast.Attribute(ast.Name(package), name):
                found.setdefault(attribute, []).append(f"{package}.{name}")
    return {attribute: tuple(dict.fromkeys(names)) for attribute, names in found.items()}


def _assigned(node: ast.ClassDef) -> Iterator[tuple[str, ast.Call]]:
    """(attribute, call) of every ``self.attribute = call(...)`` in ``__init__``."""
    for each in ast.walk(node):
        targets = (
            each.targets if isinstance(each, ast.Assign) else [each.target] if isinstance(each, ast.AnnAssign) else []
        )
        value = each.value if isinstance(each, ast.Assign | ast.AnnAssign) else None
        for target in targets:
            match target, value:
                case ast.Attribute(ast.Name("self"), attribute), ast.Call():
                    yield attribute, value


def _locals(node: ast.ClassDef) -> Iterator[tuple[str, list[str]]]:
    """Local names that stand for classes, ``cls = A if test else B`` or one after the other."""
    found: dict[str, list[str]] = {}
    for each in ast.walk(node):
        match each:
            case ast.Assign([ast.Name(name)], ast.Name() | ast.IfExp() as value):
                found.setdefault(name, []).extend(
                    part.id for part in ast.walk(value) if isinstance(part, ast.Name) and part.id[0].isupper()
                )
    yield from ((name, names) for name, names in found.items() if names)


def _resolved(node: ast.ClassDef, name: str) -> str:
    """The class that ``Class.attribute`` is bound to in the class's body; any other name is one itself."""
    for each in node.body:
        match each:
            case ast.AnnAssign(ast.Name(attribute), _, ast.Name(bound)) if name == f"{node.name}.{attribute}":
                return bound
            case ast.Assign([ast.Name(attribute)], ast.Name(bound)) if name == f"{node.name}.{attribute}":
                return bound
    return name


def _imported(tree: ast.Module, module: str) -> Iterator[tuple[str, str]]:
    """(name, module that it comes from) of every ``from ... import``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            parent = ".".join(module.split(".")[: -node.level]) if node.level else ""
            source = ".".join(part for part in (parent, node.module or "") if part)
            yield from ((alias.asname or alias.name, source) for alias in node.names)


def _is_model(module: str) -> bool:
    parent, _, name = module.rpartition(".")
    return parent == _MODELS and name not in _NO_MODELS


def norms(file: File, layer: str) -> Iterator[str]:
    """What decoder layers, and what holds embeddings, make for attributes that are named after norms."""
    for node in file.classes.values():
        attributes = made(node)
        if node.name == layer or any(each.startswith("embed") for each in attributes):
            for attribute, names in attributes.items():
                yield from (name for name in names if "norm" in attribute and "Norm" in name)
