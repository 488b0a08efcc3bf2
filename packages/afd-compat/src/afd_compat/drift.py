"""Whether one declaration still fits a vLLM, decided from source text alone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from afd_compat.fingerprint import Kind, fingerprint
from afd_compat.version import is_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from afd_compat.declaration import Patch
    from afd_compat.source import Tree

ALLOW: Final = "AFD_ALLOW_DRIFT"
COMMAND: Final = "afd patches --against WHEEL"


class DriftError(RuntimeError):
    """AFD is configured, but a patch does not fit the installed vLLM."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found for one patch: a `problem`, or "", and whether the user `allowed` it.

    untested: the problem is only that this version is outside the patch's range.
    """

    patch: Patch
    problem: str = ""
    allowed: bool = False
    untested: bool = False

    @property
    def blocks(self) -> bool:
        """Whether this stops the whole set from being installed."""
        return bool(self.problem) and not self.allowed


def inspect_patch(patch: Patch, tree: Tree, version: str | None, allowed: frozenset[str] = frozenset()) -> Finding:
    """Compare `patch` with the vLLM of `version` whose text is in `tree`; imports nothing.

    A target that is gone cannot be allowed, since there would be nothing to patch.
    """
    where = f"{patch.target} (tested with vLLM {patch.vllm})"
    if version is None or not is_version(version):
        found = "no vLLM is installed" if version is None else f"vLLM {version!r} is no version"
        return Finding(patch, f"{where} cannot be patched, because {found}")
    text = tree.read(patch.module)
    expected = patch.pin(version)
    kind = cast("Kind", expected.partition(":")[0] or "sig")
    try:
        actual = fingerprint(text, patch.qualname, kind) if text is not None else None
    except SyntaxError as error:
        return Finding(patch, f"{where} is in text that this Python cannot parse ({error.msg})")
    if text is None or (actual is None and patch.how != "add"):
        return Finding(patch, f"{where} does not exist in vLLM {version}")
    if not patch.covers(version):
        problem = f"{where} was not tested with vLLM {version}"
        return Finding(patch, problem, allowed=patch.target in allowed, untested=True)
    elif patch.pins and not expected:
        problem = f"{where} has no pin for vLLM {version}"
    elif expected and actual != expected:
        problem = f"{where} is {actual} in vLLM {version} instead of the tested {expected}"
    else:
        return Finding(patch)
    return Finding(patch, problem, allowed=patch.target in allowed)


def problems(findings: Iterable[Finding], version: str | None) -> list[str]:
    """What blocks: each problem, but an untested version once for all targets with the same range."""
    found = [finding for finding in findings if finding.blocks]
    ranges: dict[str, list[str]] = {}
    for finding in found:
        if finding.untested:
            ranges.setdefault(finding.patch.vllm, []).append(finding.patch.target)
    return [
        *(f"it is {version}, and {tested} was tested ({', '.join(names)})" for tested, names in ranges.items()),
        *(finding.problem for finding in found if not finding.untested),
    ]


def allowed_targets(env: Mapping[str, str] = os.environ) -> frozenset[str]:
    """The targets whose drift the user accepts: AFD_ALLOW_DRIFT=target[,target]."""
    return frozenset(target.strip() for target in env.get(ALLOW, "").split(",") if target.strip())


def sentence(problems: list[str]) -> str:
    """One sentence for the user: what does not fit and what to do about it."""
    return (
        f"AFD is configured but cannot patch this vLLM: {'; '.join(problems)}; see what changed with "
        f"'{COMMAND}', install a tested vLLM, or accept the change at your own risk with {ALLOW}=TARGET."
    )
