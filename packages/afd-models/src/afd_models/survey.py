"""Every architecture with experts that a vLLM knows: declared, refused, or what a proposal from its text comes to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from afd_models.families import load, refused
from afd_models.propose import NAMED, experts_beside, propose, registered
from afd_models.reading import File

if TYPE_CHECKING:
    from afd_compat.snapshot import Snapshot

State = Literal["declared", "refused", "proposed", "not proposed"]

#: What a module has in its text that makes experts, or is a model with experts under another name.
_EXPERTS: Final = ("layers.fused_moe", "SparseMoeBlock", "DeepseekV3ForCausalLM")
_DRAFTER: Final = "Eagle"
_SEVERAL: Final = "ForConditionalGeneration"
_SERVED: Final = ("ForCausalLM", _SEVERAL)
#: Where newer architectures have a file per platform.
_PLATFORM: Final = "nvidia.model"


@dataclass(frozen=True, slots=True)
class Row:
    """One architecture. note: why not, empty where there is nothing to say."""

    arch: str
    module: str
    state: State
    note: str = ""


def survey(snapshot: Snapshot) -> Iterator[Row]:
    """All that generate text, drafters and dense architectures left out, by name."""
    declared, without = load(), refused()
    for arch, module in sorted(registered(snapshot).items()):
        if arch in declared:
            yield Row(arch, declared[arch].module, "declared")
        elif arch in without:
            yield Row(arch, without[arch].module, "refused", without[arch].reason)
        elif arch.endswith(_SERVED) and not arch.startswith(_DRAFTER):
            yield from _looked_at(arch, module, snapshot)


def _looked_at(arch: str, module: str, snapshot: Snapshot) -> Iterator[Row]:
    found, platform = snapshot.module(module), snapshot.module(f"{module}.{_PLATFORM}")
    text = "".join(each[0] for each in (found, platform) if each is not None)
    if not any(word in arch for word in NAMED):
        if not any(word in text for word in _EXPERTS):
            return
        if found is not None and experts_beside(arch, File(module, snapshot), snapshot):
            return
    if platform is not None:
        yield Row(arch, module, "not proposed", f"its classes are in a file per platform, {module}.{_PLATFORM}.")
        return
    if arch.endswith(_SEVERAL):
        yield Row(arch, module, "not proposed", "by its name it takes more than text, which AFD does not serve.")
        return
    proposal = propose(arch, snapshot)
    yield Row(arch, module, "proposed" if proposal.spec else "not proposed", " ".join(proposal.missing))
