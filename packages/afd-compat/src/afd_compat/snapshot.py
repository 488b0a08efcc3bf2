"""One vLLM as text, each of its modules read and parsed once, however many names of it are asked for."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from afd_compat.fingerprint import Kind, cleaned_source

if TYPE_CHECKING:
    from afd_compat.source import Tree


class Snapshot:
    """Cleaned text of functions and modules of one tree."""

    def __init__(self, tree: Tree) -> None:
        self.version = tree.vllm_version()
        self._tree = tree
        self._modules: dict[str, tuple[str, ast.Module] | None] = {}

    def module(self, name: str) -> tuple[str, ast.Module] | None:
        """Text and syntax tree of a module, None where it is not there. Raises SyntaxError."""
        if name not in self._modules:
            text = self._tree.read(name)
            self._modules[name] = None if text is None else (text, _parsed(text))
        return self._modules[name]

    def cleaned(self, module: str, qualname: str, kind: Kind) -> str | None:
        """The text that a fingerprint hashes, None where there is no such function or class."""
        found = self.module(module)
        return None if found is None else cleaned_source(found[0], qualname, kind, found[1])

    def cleaned_module(self, module: str) -> str | None:
        """Every function and class of a module, cleaned."""
        found = self.module(module)
        if found is None:
            return None
        names = [node.name for node in found[1].body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        return "\n".join(self.cleaned(module, name, "body") or "" for name in dict.fromkeys(names))


def _parsed(text: str) -> ast.Module:
    """Raises SyntaxError also for what is nested too deeply to be a module of anyone."""
    try:
        return ast.parse(text)
    except (MemoryError, RecursionError, ValueError) as error:
        raise SyntaxError(str(error) or "nested too deeply") from error
