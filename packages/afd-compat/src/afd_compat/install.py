"""Puts the declared patches in place in this process, all or none of them, and says why if they cannot be."""

from __future__ import annotations

import functools
import logging
import sys
from typing import TYPE_CHECKING

from afd_compat.applied import Applied, apply
from afd_compat.drift import ALLOW, DriftError, Finding, allowed_targets, inspect_patch, sentence
from afd_compat.source import Tree
from afd_compat.version import installed_version
from afd_compat.watch import ImportWatch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from afd_compat.declaration import Patch

logger = logging.getLogger("afd.compat")


class Installation:
    """The patches of this process; it tells its problems to those who ask, and only AFD does.

    Guards and scoped patches are compared with vLLM only when asked: reading the text costs tens of
    milliseconds, which a vLLM without AFD need not pay.
    """

    def __init__(self, patches: tuple[Patch, ...]) -> None:
        self.patches = patches
        self.version = installed_version()
        self._allowed = allowed_targets()
        self._applied: dict[str, Applied] = {}
        self._waiting: dict[str, list[Patch]] = {}
        self._late: dict[str, str] = {}
        self._warned = False
        self._watch = ImportWatch()
        eager = [patch for patch in patches if patch.when == "import" and patch.how != "seam"]
        self._early = {patch.target: self._inspect(patch) for patch in eager if not patch.guard}
        blocked = any(finding.blocks for finding in self._early.values())
        for patch in eager:
            if patch.guard or not blocked:
                self._place(patch)

    @functools.cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What the text of the installed vLLM says about each patch, seams left out."""
        real = [patch for patch in self.patches if patch.how != "seam"]
        return tuple(self._early.get(patch.target) or self._inspect(patch) for patch in real)

    def problems(self) -> list[str]:
        """What stops AFD from running on this vLLM; empty if nothing does."""
        return [*(finding.problem for finding in self.findings if finding.blocks), *self._late.values()]

    def require(self) -> None:
        """Raise DriftError with one sentence unless every patch fits; log accepted drift."""
        problems = self.problems()
        if problems:
            raise DriftError(sentence(problems))
        accepted = [finding.problem for finding in self.findings if finding.problem]
        if accepted and not self._warned:
            self._warned = True
            logger.warning("%s accepts: %s.", ALLOW, "; ".join(accepted))

    def state(self, patch: Patch) -> str:
        """One of "seam", "scoped", "in place", "waits for import" and "not installed"."""
        if patch.how == "seam":
            return "seam"
        if patch.when == "scoped":
            return "scoped"
        if patch.target in self._applied:
            return "in place"
        return "waits for import" if patch in self._waiting.get(patch.module, ()) else "not installed"

    def holders(self, patch: Patch) -> tuple[str, ...]:
        """The names ("module:name") in other modules that were rebound to the patched function."""
        applied = self._applied.get(patch.target)
        return tuple(str(slot) for slot in applied.holders()) if applied else ()

    def undo(self) -> None:
        """Restore the very objects that were there before and stop waiting for imports."""
        self._watch.stop()
        self._waiting.clear()
        while self._applied:
            self._applied.popitem()[1].undo()

    def _inspect(self, patch: Patch) -> Finding:
        return inspect_patch(patch, Tree(), self.version, self._allowed)

    def _place(self, patch: Patch) -> None:
        """Apply `patch` now or, where its module is not there yet, when that has been imported."""
        if patch.module not in sys.modules:
            self._waiting.setdefault(patch.module, []).append(patch)
            self._watch.after(patch.module, lambda: self._arrived(patch.module))
        elif patch.guard or not self._late:
            try:
                self._applied[patch.target] = apply(patch)
            except (LookupError, TypeError) as error:
                self._fail(patch, str(error))

    def _arrived(self, module: str) -> None:
        for patch in self._waiting.pop(module, ()):
            self._place(patch)

    def _fail(self, patch: Patch, problem: str) -> None:
        """All or nothing: keep the reason for `require` and take out everything but the guards."""
        self._late[patch.target] = problem
        for target, applied in list(self._applied.items()):
            if not applied.patch.guard:
                self._applied.pop(target).undo()


_current: Installation | None = None


def install(patches: Iterable[Patch]) -> Installation:
    """Put `patches` in place in this process and return the installation; a second call adds what is new.

    Imports nothing: a target whose module is not loaded is patched when it is. Raises ValueError for two
    patches of one target. A vLLM that does not fit raises only in `require`, since AFD may not be
    configured at all.
    """
    global _current
    wanted = tuple(dict.fromkeys([*(_current.patches if _current else ()), *patches]))
    if _current is not None and wanted == _current.patches:
        return _current
    refuse_duplicates(wanted)
    uninstall()
    _current = Installation(wanted)
    return _current


def uninstall() -> None:
    """Undo what `install` did in this process."""
    global _current
    if _current is not None:
        _current.undo()
        _current = None


def installed() -> Installation | None:
    """The installation of this process, None before `install`."""
    return _current


def require() -> None:
    """Raise DriftError with one sentence unless this process's patches fit; for where AFD is configured."""
    if _current is None:
        raise DriftError(
            "AFD is configured but its patches are not installed in this process; let vLLM load the plugin "
            "'afd' (VLLM_PLUGINS must name it where it is set)."
        )
    _current.require()


def refuse_duplicates(patches: Iterable[Patch]) -> None:
    """Raise ValueError where two declarations have one target: the order would decide which one wins."""
    seen: set[str] = set()
    for patch in patches:
        if patch.target in seen:
            raise ValueError(f"Every target must be patched once, but {patch.target} is declared twice; remove one.")
        seen.add(patch.target)
