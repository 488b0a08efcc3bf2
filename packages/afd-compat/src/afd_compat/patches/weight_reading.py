"""Lets a role's loader leave out what the role does not hold, before it is read from disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from afd_compat.declaration import Native, Process, patch
from afd_compat.patches.versions import TESTED

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

Needed = Callable[[str], bool]

_WORKER: Final[tuple[Process, ...]] = ("worker",)
_UNTIL: Final = "vLLM's loader asks the model which names of a checkpoint it holds"

#: Asked with names as the checkpoint has them, while `reading_only` is open.
_NEEDED: ContextVar[Needed] = ContextVar("afd_needed")
#: Numbers of the experts that this rank holds, while `reading_only` is open; None for all.
_EXPERTS: ContextVar[Set[int] | None] = ContextVar("afd_experts", default=None)


@patch(
    "vllm.model_executor.model_loader.weight_utils:filter_duplicate_safetensors_files",
    vllm=TESTED,
    how="wrap",
    when="scoped",
    processes=_WORKER,
    effect="Files of which the checkpoint's index names no tensor that this role holds are not opened.",
    until=_UNTIL,
    pin="sig:421048c965a416d4",
)
def needed_files(native: Native, hf_weights_files: Sequence[str], hf_folder: str, index_file: str) -> object:
    files = cast("list[str]", native(hf_weights_files, hf_folder, index_file))
    index = Path(hf_folder, index_file)
    if not index.is_file():
        return files
    from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight  # with needed_tensors around it

    homes = cast("dict[str, str]", json.loads(index.read_text())["weight_map"])
    wanted = {file for name, file in homes.items() if not should_skip_weight(name, None)}
    return [file for file in files if Path(file).name in wanted]


@patch(
    "vllm.model_executor.model_loader.ep_weight_filter:should_skip_weight",
    vllm=TESTED,
    how="wrap",
    when="scoped",
    processes=_WORKER,
    effect="Tensors that this role does not hold are skipped where vLLM skips the experts of other ranks, unread.",
    until=_UNTIL,
    pin="sig:a9fef2a935621c17",
)
def needed_tensors(native: Native, weight_name: str, local_expert_ids: object) -> object:
    # vLLM knows the rank's experts here only where enable_ep_weight_filter asks for it.
    held = _EXPERTS.get() if local_expert_ids is None else local_expert_ids
    return not _NEEDED.get()(weight_name) or native(weight_name, held)


@contextmanager
def reading_only(needed: Needed, experts: Set[int] | None = None) -> Iterator[None]:
    """While open, vLLM's safetensors loader reads only tensors whose name in the checkpoint is `needed`.

    experts: numbers of those that this rank of an expert-parallel group holds; None where it holds all.
    """
    from afd_compat.scoped import Scope

    token, held = _NEEDED.set(needed), _EXPERTS.set(experts)
    try:
        with Scope(needed_files, needed_tensors):
            yield
    finally:
        _EXPERTS.reset(held)
        _NEEDED.reset(token)
