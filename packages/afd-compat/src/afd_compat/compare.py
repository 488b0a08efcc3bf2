"""What became of each patch's target from one vLLM to another, from their text alone."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast

from afd_compat.fingerprint import Kind, digest
from afd_compat.version import is_version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from afd_compat.declaration import Patch
    from afd_compat.snapshot import Snapshot

Verdict = Literal[
    "same", "signature same, body changed", "signature changed as pinned", "broken", "gone", "new", "not there yet"
]
KINDS: Final[tuple[Kind, ...]] = ("sig", "body")


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one `subject`: a verdict, what to know about it, and the diff to read, "" for none.

    fits: whether AFD runs with it as it is declared now.
    """

    subject: str
    verdict: Verdict
    fits: bool
    note: str = ""
    diff: str = ""


def compare_patch(patch: Patch, old: Snapshot | None, new: Snapshot) -> Change:
    """How `patch` fares on `new`; `old` is a vLLM that it was tested with, without which only its pins are known."""
    if patch.how == "planned":
        return Change(patch.target, "not there yet", fits=True)
    try:
        return _compare(patch, old, new)
    except SyntaxError as error:
        return Change(patch.target, "broken", False, unreadable(error))


def unreadable(error: SyntaxError) -> str:
    """The note on text that is newer than this Python."""
    return f"in text that this Python cannot parse ({error.msg})"


def _compare(patch: Patch, old: Snapshot | None, new: Snapshot) -> Change:
    then: dict[Kind, str | None] = {
        kind: old.cleaned(patch.module, patch.qualname, kind) if old else None for kind in KINDS
    }
    now: dict[Kind, str | None] = {kind: new.cleaned(patch.module, patch.qualname, kind) for kind in KINDS}
    if now["body"] is None:
        return Change(patch.target, "same", fits=True) if patch.how == "add" else Change(patch.target, "gone", False)
    pin = patch.pin(new.version) if new.version and is_version(new.version) else ""
    kind = cast("Kind", pin.partition(":")[0] or "sig")
    pinned = bool(pin) and digest(now[kind] or "", kind) == pin
    verdict = _verdict(old, then, now, pinned)
    if pinned:
        note = f"this text is pinned for {new.version}" if kind == "body" and verdict != "same" else ""
    elif pin:
        note = f"{pin} was tested, this is {digest(now[kind] or '', kind)}"
    else:
        note = _unpinned(patch, now) if patch.pins else ""
    fits = pinned or (not patch.pins and verdict not in ("broken", "new"))
    return Change(patch.target, verdict, fits, note, difference(then["body"], now["body"]))


def _unpinned(patch: Patch, now: Mapping[Kind, str | None]) -> str:
    """What to know where a version has no pin of its own: perhaps another version's text is the same."""
    for minor, pin in reversed(patch.pins):
        kind = cast("Kind", pin.partition(":")[0])
        if digest(now[kind] or "", kind) == pin:
            return f"no pin for this version, but the text of {minor}"
    return "no pin for this version"


def _verdict(
    old: Snapshot | None, then: Mapping[Kind, str | None], now: Mapping[Kind, str | None], pinned: bool
) -> Verdict:
    if then["body"] is None:
        if old is not None:
            return "new"
        return "signature same, body changed" if pinned else "broken"
    if then["body"] == now["body"]:
        return "same"
    if then["sig"] == now["sig"]:
        return "signature same, body changed"
    return "signature changed as pinned" if pinned else "broken"


def difference(then: str | None, now: str | None) -> str:
    """A unified diff of two cleaned texts, "" where one is missing or they are equal."""
    if then is None or now is None:
        return ""
    return "\n".join(list(difflib.unified_diff(then.splitlines(), now.splitlines(), n=2, lineterm=""))[2:])
