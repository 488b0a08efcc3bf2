"""Patches that are in place only inside a `with`, cheap enough for one step of a model runner."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Final

from afd_compat.applied import Applied, apply
from afd_compat.drift import DriftError, allowed_targets, inspect_patch, problems, sentence
from afd_compat.source import Tree
from afd_compat.version import installed_version

if TYPE_CHECKING:
    from types import TracebackType

    from afd_compat.declaration import Patch

_open: Final[set[str]] = set()


class Scope:
    """A reusable context manager: build it once, enter it per step; all threads see its patches.

    Holders are searched when it is first entered and again only after modules were imported.
    """

    def __init__(self, *patches: Patch) -> None:
        """Compare `patches` with the installed vLLM.

        Raises ValueError for a patch that is not scoped, DriftError for one that does not fit.
        """
        for patch in patches:
            if patch.when != "scoped":
                raise ValueError(f"A scoped patch was expected, but {patch.target} is not; declare it when='scoped'.")
        version, allowed = installed_version(), allowed_targets()
        findings = [inspect_patch(patch, Tree(), version, allowed) for patch in patches]
        found = problems(findings, version)
        if found:
            raise DriftError(sentence(found))
        self._patches = patches
        self._applied: list[Applied] = []
        self._modules = 0

    def __enter__(self) -> Scope:
        """Put all patches in place, or none. Raises RuntimeError where a target is in another open scope."""
        for patch in self._patches:
            if patch.target in _open:
                raise RuntimeError(f"{patch.target} must be in one open scope, but it is in two; leave the other.")
        if self._applied and self._modules == len(sys.modules):
            for applied in self._applied:
                applied.again()
        else:
            self._apply_all()
        _open.update(patch.target for patch in self._patches)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the native functions, also in modules that imported the patched ones inside the scope."""
        _open.difference_update(patch.target for patch in self._patches)
        for applied in reversed(self._applied):
            applied.undo(search=self._modules != len(sys.modules))

    def _apply_all(self) -> None:
        self._applied = []
        try:
            for patch in self._patches:
                importlib.import_module(patch.module)
                self._applied.append(apply(patch))
        except BaseException:
            for applied in reversed(self._applied):
                applied.undo()
            self._applied = []
            raise
        self._modules = len(sys.modules)
