"""Times steps of the attention role on the device, split and whole, as vLLM's own dummy steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch

from afd_workers.dbo_rule import Decider, Rule, Timing, forced, search

if TYPE_CHECKING:
    from torch import Tensor, nn
    from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

#: The most tokens that each request of a timed decode step has behind it: attention's time grows with them.
CONTEXT = 4096
REPLAYS, ROUNDS = 4, 2
#: Makes what is entered around a wait for the device, see DeviceAttentionPort.awaiting.
Awaiting = Callable[[], AbstractContextManager[object]]


class Clock:
    """Times what `stepping` lets vLLM split; see Overlap.

    With random tokens: the same token in all rows, as dummy steps have it, would go to the same few experts, and what a
    split step costs is that it reads most of the experts twice.
    """

    def __init__(
        self, runner: GPUModelRunner, stepping: AbstractContextManager[object], awaiting: Awaiting = nullcontext
    ) -> None:
        self._runner, self._stepping, self._awaiting = runner, stepping, awaiting
        self._parallel = runner.vllm_config.parallel_config

    def decider(self) -> Decider:
        """Times both kinds of steps."""
        sizes = halving([rows for rows, count in self._graphs() if count > 1])
        contexts = (0, min(CONTEXT, self._runner.max_model_len // 2))
        decode = search(sizes, contexts, self.decode) if self._graphs() else None
        return Decider(self._parallel, decode, self._prefill())

    def decode(self, rows: int, context: int) -> Timing:
        """Of a decode step from its two graphs."""
        manager, graphs = self._runner.cudagraph_manager, self._graphs()
        assert manager is not None  # or there were no graphs

        def one(split: bool) -> float:
            # Leaves in the graph's inputs what a step of this kind has there.
            self._dummy(rows, split, decode=True, context=context)
            self._mix(self._runner.input_buffers.input_ids[:rows])
            desc = graphs[rows, self._parallel.num_ubatches if split else 1]
            return self._milliseconds(lambda: manager.run_fullgraph(desc), REPLAYS)

        return _timing(rows, context, one)

    def prefill(self, rows: int, context: int) -> Timing:
        """Of a step without a graph, host included, which is often what bounds it."""

        def one(split: bool) -> float:
            self._dummy(rows, split, decode=False, context=context)
            return self._milliseconds(lambda: self._dummy(rows, split, decode=False, context=context), 1)

        return _timing(rows, context, one)

    def _prefill(self) -> Rule:
        sizes, rows = [], self._runner.vllm_config.scheduler_config.max_num_batched_tokens
        while rows >= self._parallel.dbo_prefill_token_threshold:
            sizes.append(rows)
            rows //= 2
        return search(sizes, (0,), self.prefill)

    def _graphs(self) -> dict[tuple[int, int], BatchExecutionDescriptor]:
        manager = self._runner.cudagraph_manager
        return {} if manager is None else {(desc.num_tokens, desc.num_ubatches): desc for desc in manager.graphs}

    def _dummy(self, rows: int, split: bool, *, decode: bool, context: int) -> None:
        with forced(self._parallel, split), self._stepping, self._mixed():
            self._runner._dummy_run(rows, uniform_decode=decode, context_len=context)

    @contextmanager
    def _mixed(self) -> Iterator[None]:
        """Within it the model is called with random tokens."""

        def mix(_model: nn.Module, _args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            ids = kwargs.get("input_ids")
            if isinstance(ids, torch.Tensor):
                self._mix(ids)

        hook = self._runner.model.register_forward_pre_hook(mix, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()

    def _mix(self, ids: Tensor) -> None:
        ids.random_(self._runner.vllm_config.model_config.get_vocab_size())

    def _milliseconds(self, run: Callable[[], object], count: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            run()
        end.record()
        with self._awaiting():
            end.synchronize()
        elapsed: float = begin.elapsed_time(end)
        return elapsed / count


def halving(sizes: Sequence[int]) -> list[int]:
    """The largest and of the others as few as halve it again and again: between them the next smaller one speaks."""
    found: list[int] = []
    for rows in sorted(sizes, reverse=True):
        if not found or rows <= found[-1] // 2:
            found.append(rows)
    return found


def _timing(rows: int, context: int, one: Callable[[bool], float]) -> Timing:
    """The best of some rounds of each, in turn: whatever else the devices do only makes a step longer."""
    whole = split = math.inf
    for _ in range(ROUNDS):
        whole, split = min(whole, one(False)), min(split, one(True))
    return Timing(rows, context, whole, split)
