"""Proposes the declaration of a family from the text of vLLM's model file, so that adding one starts with data."""

from __future__ import annotations

import ast
import difflib
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from afd_models.reading import Block, File, Layer, layers, norms, sparse
from afd_models.spec import COMMON_UNUSED, MoE

if TYPE_CHECKING:
    from afd_compat.snapshot import Snapshot

REGISTRY = "vllm.model_executor.models.registry"
_WIDTH = 120  # of a line, which `tools/dev.py lint` demands


@dataclass(frozen=True, slots=True)
class Proposal:
    """spec: the declaration, None where a part of it is missing. missing: a sentence per thing that was not found."""

    spec: MoE | None
    missing: tuple[str, ...] = ()


def locate(arch: str, snapshot: Snapshot) -> str:
    """The module that defines ``arch``; ValueError for what vLLM's registry does not have."""
    known = registered(snapshot)
    if arch not in known:
        close = difflib.get_close_matches(arch, known, n=3)
        raise ValueError(
            f"Expected an architecture of vLLM {snapshot.version or 'of no stated version'}, found {arch!r}: "
            f"name one as config.json does{', such as ' + ' or '.join(close) if close else ''}."
        )
    return known[arch]


@functools.lru_cache(maxsize=1)  # whoever surveys a snapshot asks for every architecture
def registered(snapshot: Snapshot) -> Mapping[str, str]:
    """Architecture -> module, of every entry of the registry's dictionaries."""
    return dict(_registered(snapshot))


def _registered(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    found = snapshot.module(REGISTRY)
    for node in ast.walk(found[1]) if found is not None else ():
        for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
            match key, value:
                case ast.Constant(str(arch)), ast.Tuple([ast.Constant(str(module)), ast.Constant(str())]):
                    yield arch, module if module.startswith("vllm.") else f"{REGISTRY.rpartition('.')[0]}.{module}"


def propose(arch: str, snapshot: Snapshot) -> Proposal:
    """What `arch` would be declared as on the vLLM of `snapshot`; ValueError when that vLLM has no such model."""
    module = locate(arch, snapshot)
    file = File(module, snapshot)
    if arch not in file.classes:
        return Proposal(None, (f"{module} does not define {arch} itself, which a cut needs.",))
    if beside := experts_beside(arch, file, snapshot):
        return Proposal(
            None,
            (f"{arch} has no experts: of {module}, {' and '.join(beside)} {'have' if beside[1:] else 'has'} them.",),
        )
    blocks = list(sparse(file))
    if not blocks:
        return Proposal(None, (f"No class of {module} gives itself experts made by vLLM's fused_moe layers.",))
    found = [(block, layer) for block in blocks for layer in layers(file, block, arch)]
    if not found:
        names = " or ".join(dict.fromkeys(block.name for block in blocks))
        return Proposal(None, (f"No decoder layer that {arch} leads to in {module} makes itself a {names}.",))
    block, layer = found[0]
    attention = tuple(dict.fromkeys(name for a, names in layer.made.items() if _attends(a) for name in names))
    dense = tuple(dict.fromkeys((*(name for name in layer.made[layer.ffn] if name != layer.block), *block.shared)))
    also = file.bases(arch)
    normed = [name for each in (file, *(File(other, snapshot) for other in also)) for name in norms(each, layer.name)]
    further = tuple(dict.fromkeys(each.name for _, each in found if each.name != layer.name))
    missing = (
        *_missing(file, attention, normed),
        *_further(module, layer.name, further),
        *_elsewhere(file, also, block),
        *_beside(layer),
    )
    spec = MoE(
        arch=arch,
        module=module,
        also=also,
        attention=attention,
        experts=block.factory,
        block="" if block.hands_gate_on else layer.block,
        dense=dense,
        ffn=layer.ffn,
        inner=block.inner,
        unused=(*COMMON_UNUSED, *(name for name in dict.fromkeys(normed) if name not in COMMON_UNUSED)),
        overlap=_overlap(block),
        vllm=_range(snapshot.version),
    )
    return Proposal(None if missing else spec, missing)


#: Names of architectures say that there are experts, if not always.
NAMED = ("Moe", "MoE")


def experts_beside(arch: str, file: File, snapshot: Snapshot) -> tuple[str, ...]:
    """The architectures of the same file that are vLLM's mixtures of experts, where ``arch`` is dense beside them.

    Both share their layers, so that nothing else in the text tells them apart.
    """
    if arch not in file.classes or any(word in arch for word in NAMED) or file.mixes_experts(arch):
        return ()
    known = registered(snapshot)
    return tuple(name for name in sorted(file.classes) if known.get(name) == file.name and file.mixes_experts(name))


#: What holds several modules, attention among others.
_CONTAINERS = ("ModuleDict", "ModuleList", "Sequential")


def _attends(attribute: str) -> bool:
    return ("attn" in attribute or "attention" in attribute) and "norm" not in attribute


def _further(module: str, proposed: str, further: tuple[str, ...]) -> Iterator[str]:
    if further:
        yield f"{module} also has experts in {', '.join(further)}, which a declaration made from {proposed} leaves out."


def _elsewhere(file: File, also: tuple[str, ...], block: Block) -> Iterator[str]:
    """Where the block's own file, which looks its factory up, is not among those that a declaration names."""
    home = file.imported.get(block.name, file.name)
    if block.factory not in file.imported and home not in (file.name, *also):
        yield f"{file.name} takes its {block.name} from {home}, whose names a declaration of {file.name} does not cut."


def _beside(layer: Layer) -> Iterator[str]:
    """What a layer makes beside attention, norms and the FFN."""
    for attribute, names in layer.made.items():
        if attribute != layer.ffn and not _attends(attribute) and "norm" not in attribute:
            made = " or ".join(name for name in names if "." not in name)
            if made:
                yield f"A {layer.name} also makes itself a {made} ({attribute}), which no declaration gives to a role."


def _missing(file: File, attention: tuple[str, ...], normed: list[str]) -> Iterator[str]:
    module = file.name
    if not attention:
        yield f"No attribute of a decoder layer of {module} is named after attention."
    for name in attention:
        if name.rpartition(".")[2] in _CONTAINERS:
            yield f"{module} makes attention as a {name} of several, which is no class of attention to leave out."
    for name in dict.fromkeys(normed):
        if "." in name:
            yield f"{module} makes norms as {name}, no name of its own, so that the FFN role would make them too."


def _overlap(block: Block) -> tuple[str, ...]:
    """Both roles hold the gates that a block hands to its experts; of a block that is exchanged whole, nothing."""
    return tuple(block.gates) if block.hands_gate_on else ("gate",)


def _range(version: str | None) -> str:
    """The one minor release that was looked at."""
    stated = re.match(r"(\d+)\.(\d+)", version or "")
    if stated is None:
        raise ValueError(
            f"Expected a vLLM that states its version, found {version!r}: install a release of the vLLM that is to be "
            "declared."
        )
    major, minor = (int(part) for part in stated.groups())
    return f">={major}.{minor},<{major}.{minor + 1}"


def text(spec: MoE) -> str:
    """The file that declares ``spec``; what has its default is left out."""
    from dataclasses import MISSING, fields

    lines = [f'"""{spec.arch}, as proposed from vLLM\'s text: say here what is special about it."""', ""]
    rest = spec.unused[len(COMMON_UNUSED) :]
    lines += [f"from afd_models.spec import {'COMMON_UNUSED, ' if rest else ''}MoE", "", "MODEL = MoE("]
    for field in fields(spec):
        value = getattr(spec, field.name)
        if field.default is not MISSING and value == field.default:
            continue
        if field.name == "unused":
            names = ", ".join(f'"{name}"' for name in rest)
            line = f"    unused=(*COMMON_UNUSED, {names}),"
        else:
            line = f"    {field.name}={_literal(value)},"
        lines += [line] if len(line) <= _WIDTH else _broken(line)
    return "\n".join([*lines, ")", ""])


def _broken(line: str) -> list[str]:
    """A tuple's line with a line for each name, as `ruff format` writes it."""
    name, _, names = line.removesuffix("),").partition("(")
    return [f"{name}(", *(f"        {each}," for each in names.removesuffix(",").split(", ")), "    ),"]


def _literal(value: str | tuple[str, ...]) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    names = [f'"{name}"' for name in value]
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"
