"""Puts the declared patches in place in this process, all or none of them, and says why if they cannot be."""

from __future__ import annotations

import functools
import logging
import sys
from typing import TYPE_CHECKING

from afd_compat.applied import Applied, apply
from afd_compat.drift import ALLOW, DriftError, Finding, allowed_targets, inspect_patch, problems, sentence
from afd_compat.source import Tree
from afd_compat.version import installed_version, is_version
from afd_compat.watch import ImportWatch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from afd_compat.declaration import Patch

logger = logging.getLogger("afd.compat")


class Installation:
    """The patches of this process; it tells its problems to those who ask, and only AFD does.

    At first only versions are compared. The text is when somebody asks or a patch is first active in a call:
    reading it costs a tenth of a second, which a vLLM without AFD need not pay.
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
        eager = [patch for patch in patches if patch.when == "import" and patch.function is not None]
        fits = all(patch.guard or self._may_fit(patch) for patch in eager)
        for patch in eager:
            if patch.guard or fits:
                self._place(patch)

    @functools.cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What the text of the installed vLLM says about each patch that has a body."""
        real = [patch for patch in self.patches if patch.function is not None]
        tree = Tree()
        return tuple(inspect_patch(patch, tree, self.version, self._allowed) for patch in real)

    def problems(self) -> list[str]:
        """What stops AFD from running on this vLLM; empty if nothing does."""
        return [*problems(self.findings, self.version), *self._late.values()]

    def accepted(self) -> list[str]:
        """What does not fit and the user accepts."""
        return [finding.problem for finding in self.findings if finding.problem and finding.allowed]

    def require(self) -> None:
        """Raise DriftError with one sentence unless every patch fits; log accepted drift."""
        found = self.problems()
        if found:
            raise DriftError(sentence(found))
        accepted = self.accepted()
        if accepted and not self._warned:
            self._warned = True
            logger.warning("%s accepts: %s.", ALLOW, "; ".join(accepted))

    def state(self, patch: Patch) -> str:
        """One of "seam", "not there yet", "scoped", "in place", "waits for import" and "not installed"."""
        if patch.function is None:
            return "seam" if patch.how == "seam" else "not there yet"
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

    def _may_fit(self, patch: Patch) -> bool:
        """Whether `patch` can be put in place: by the version alone, but by the text for an addition, which is
        in effect at once."""
        if patch.how == "add":
            return not inspect_patch(patch, Tree(), self.version, self._allowed).blocks
        if self.version is None or not is_version(self.version):
            return False
        return patch.covers(self.version) or patch.target in self._allowed

    @functools.cached_property
    def _text_fits(self) -> bool:
        return not any(finding.blocks for finding in self.findings)

    def _fits(self) -> bool:
        return self._text_fits and not self._late

    def _place(self, patch: Patch) -> None:
        """Apply `patch` now or, where its module is not there yet, when that has been imported."""
        if patch.module not in sys.modules:
            self._waiting.setdefault(patch.module, []).append(patch)
            self._watch.after(patch.module, lambda: self._arrived(patch.module))
        elif patch.guard or not self._late:
            try:
                self._applied[patch.target] = apply(patch) if patch.guard else apply(patch, self._fits)
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
        if patch.how == "planned":
            continue
        if patch.target in seen:
            raise ValueError(f"Every target must be patched once, but {patch.target} is declared twice; remove one.")
        seen.add(patch.target)
