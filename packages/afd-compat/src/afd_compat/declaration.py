"""What a patch is before anything is changed: declaring reads, imports and installs nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version

Native = Callable[..., object]
How = Literal["wrap", "replace", "add", "seam", "planned"]
When = Literal["import", "scoped"]
Process = Literal["api", "engine", "worker"]

_TARGET: Final = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*(\.\w+)*")
_PIN: Final = re.compile(r"(sig|body):[0-9a-f]{16}")
_ANY: Final = ""


@dataclass(frozen=True, slots=True)
class Patch:
    """One changed function of someone else: what, on which versions, how, when, where and to what effect.

    `pins` holds (minor version, fingerprint) pairs; the minor "" stands for every version in range.
    `function` is None only for a seam and for what is planned, which has no body yet. A guard is put in place on
    versions that were not tested too, since its first act is `require()`.
    """

    target: str
    vllm: str
    how: How
    when: When
    processes: tuple[Process, ...]
    effect: str
    until: str
    active: Callable[..., bool] | None = None
    pins: tuple[tuple[str, str], ...] = ()
    guard: bool = False
    seam: str = ""
    function: Native | None = None

    @property
    def module(self) -> str:
        """The module that defines the target."""
        return self.target.partition(":")[0]

    @property
    def qualname(self) -> str:
        """The target's name inside its module."""
        return self.target.partition(":")[2]

    @property
    def condition(self) -> str:
        """The first line of the docstring of `active`, for the table."""
        if self.function is None:
            return "-"
        if self.active is None:
            return "inside its scope" if self.when == "scoped" else "always"
        return (self.active.__doc__ or self.active.__name__).strip().partition("\n")[0].rstrip(".")

    def covers(self, version: str) -> bool:
        """Whether vLLM `version` is a tested release or a development, candidate or local build of one."""
        return Version(Version(version).base_version) in SpecifierSet(self.vllm)

    def pin(self, version: str) -> str:
        """The fingerprint that the target must have on vLLM `version`, "" where none is recorded."""
        pins = dict(self.pins)
        major, minor = Version(version).release[0], (*Version(version).release, 0)[1]
        return pins.get(f"{major}.{minor}", pins.get(_ANY, ""))


def patch(
    target: str,
    *,
    vllm: str,
    how: Literal["wrap", "replace", "add"],
    processes: tuple[Process, ...],
    effect: str,
    until: str,
    when: When = "import",
    active: Callable[..., bool] | None = None,
    pin: str | Mapping[str, str] = "",
    guard: bool = False,
) -> Callable[[Native], Patch]:
    """Declare the decorated function as a patch of `target` ("module:qualname").

    A wrap is called as `function(native, *args)`, a replace or an add as `function(*args)`, whenever
    `active(*args)` is true; otherwise the native runs alone. `vllm` needs an upper bound. `pin` is "sig:…"
    or "body:…", or a mapping from minor version ("0.30") to one; a wrap that relies on what happens inside
    the native pins bodies. Raises ValueError for a declaration that does not say what it must.
    """
    pins = tuple(sorted(pin.items())) if isinstance(pin, Mapping) else ((_ANY, pin),) if pin else ()
    _check(target, vllm, pins)
    if how != "add" and when == "import" and active is None:
        raise ValueError(f"The patch of {target} must say when it is active, but it does not; pass active=.")
    if how == "add" and (active is not None or pins):
        raise ValueError(f"The patch of {target} adds a name, but it has active= or pin=; an addition has neither.")
    if how != "add" and not pins:
        raise ValueError(f"The patch of {target} must pin the text it was tested with, but it does not; pass pin=.")

    def declare(function: Native) -> Patch:
        return Patch(
            target, vllm, how, when, processes, effect, until,
            active=active, pins=pins, guard=guard, function=function,
        )  # fmt: skip

    return declare


def seam(target: str, *, vllm: str, native: str, processes: tuple[Process, ...], effect: str) -> Patch:
    """Declare that the `native` seam of vLLM gives the `effect`, so that `target` need not be patched."""
    _check(target, vllm, ())
    if not native:
        raise ValueError(f"The seam entry of {target} must name vLLM's seam, but it is empty; pass native=.")
    return Patch(target, vllm, "seam", "import", processes, effect, until="", seam=native)


def planned(target: str, *, processes: tuple[Process, ...], effect: str, until: str) -> Patch:
    """Declare a patch that has no body in this version, so that tables say so; nothing of it is ever installed."""
    _check(target, "<0", ())
    return Patch(target, "", "planned", "import", processes, effect, until)


def _check(target: str, vllm: str, pins: tuple[tuple[str, str], ...]) -> None:
    if not _TARGET.fullmatch(target):
        raise ValueError(f"A patch target must be 'module:qualname', but it is {target!r}; write it that way.")
    if not any(spec.operator in ("<", "<=", "==", "~=") for spec in SpecifierSet(vllm)):
        raise ValueError(
            f"The patch of {target} needs an upper vLLM bound, but it has {vllm!r}; add one, as in '<0.34'."
        )
    for _, text in pins:
        if not _PIN.fullmatch(text):
            raise ValueError(f"A pin must be sig: or body: and 16 hex digits, but {target} has {text!r}; correct it.")
