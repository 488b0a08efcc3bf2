"""Copies of what one step's forward reads and the next step overwrites, so that the step can be run again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner


class Shadow:
    """One step's copies of `live` tensors; both ways only enqueue a copy.

    latest: tensors of which a later step finds the right values in place once the steps before it were run again.
    """

    def __init__(self, live: Sequence[Tensor], latest: Sequence[Tensor]) -> None:
        self._live, self._latest = _words(live), _words(latest)
        self._kept = [[torch.empty_like(each) for each in group] for group in (self._live, self._latest)]

    def save(self) -> None:
        """Keeps the values as they are now."""
        _copy(self._kept[0] + self._kept[1], self._live + self._latest)

    def restore(self, *, first: bool) -> None:
        """Puts them back; `first`: no step before this one is run again."""
        _copy(self._live, self._kept[0])
        if first:
            _copy(self._latest, self._kept[1])


class Shadows:
    """As many shadows as there are steps under way, made when they are first needed."""

    def __init__(self, live: Iterable[Tensor], latest: Iterable[Tensor]) -> None:
        self._live, self._latest = tuple(live), tuple(latest)
        self._idle: list[Shadow] = []

    def take(self) -> Shadow:
        """One that holds the values as they are now."""
        shadow = self._idle.pop() if self._idle else Shadow(self._live, self._latest)
        shadow.save()
        return shadow

    def give(self, shadow: Shadow) -> None:
        """It is not needed any more."""
        self._idle.append(shadow)


def of_runner(runner: GPUModelRunner) -> Shadows:
    """Of the persistent tensors of vLLM's second model runner that depend on the step."""
    states, tables = runner.req_states, runner.block_tables
    live = [each for each in vars(runner.input_buffers).values() if isinstance(each, torch.Tensor)]
    live += [*tables.input_block_tables, tables.slot_mappings]
    live += [states.num_computed_tokens.gpu, states.total_len.gpu, states.next_prefill_tokens]
    return Shadows([each for each in live if each.numel()], [states.last_sampled_tokens])


def _words(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same memory in one dtype, which one kernel copies, as far as it consists of whole words."""
    flat = [each.view(-1).view(torch.uint8) for each in tensors]
    return [each.view(torch.int32) if each.numel() % 4 == 0 else each for each in flat]


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    for dtype in {each.dtype for each in targets}:
        pairs = [pair for pair in zip(targets, sources, strict=True) if pair[0].dtype is dtype]
        torch._foreach_copy_([target for target, _ in pairs], [source for _, source in pairs])
