"""One step between its dispatch and its tokens: all that is needed to run it again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.v1.core.sched.output import GrammarOutput
    from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput
    from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor
    from vllm.v1.worker.gpu.model_runner import ExecuteModelState, GPUModelRunner

    from afd_workers.cuda_shadow import Shadow

    Output: TypeAlias = AsyncModelRunnerOutput | ModelRunnerOutput


@dataclass(slots=True, eq=False)
class Flight:
    """prepare: makes the attention's metadata from the inputs; launch: enqueues the forward with that metadata; desc:
    the graph that it needs; check: raises when the step is void; output, result: what sampling gave, before and after
    the device was waited for.
    """

    prepare: Callable[[], object] | None = None
    launch: Callable[[object], Tensor] | None = None
    desc: BatchExecutionDescriptor | None = None
    shadow: Shadow | None = None
    state: ExecuteModelState | None = None
    grammar: GrammarOutput | None = None
    check: Callable[[], None] = lambda: None
    output: Output | None = None
    result: ModelRunnerOutput | None = None

    def forward(self) -> Tensor:
        """Enqueues the whole forward again, from inputs that are in place."""
        assert self.prepare is not None
        assert self.launch is not None
        return self.launch(self.prepare())

    def owned(self, runner: GPUModelRunner) -> list[bool]:
        """By row, whether its request still has the slot that it had: it may have ended since."""
        assert self.state is not None
        batch, here = self.state.input_batch, runner.req_states.req_id_to_index
        return [here.get(name) == slot for name, slot in zip(batch.req_ids, batch.idx_mapping_np.tolist(), strict=True)]


def obstacle(runner: GPUModelRunner) -> str | None:
    """What keeps this runner's steps from being run again, None when nothing does."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    config = runner.vllm_config
    groups = runner.kv_cache_config.kv_cache_groups
    found = {
        "speculative decoding": config.speculative_config is not None,
        "LoRA": config.lora_config is not None,
        "tensor parallelism": config.parallel_config.tensor_parallel_size > 1,
        "pipeline parallelism": config.parallel_config.pipeline_parallel_size > 1,
        "a KV connector": config.kv_transfer_config is not None,
        "context parallelism": runner.pcp_manager is not None,
        "several modalities": runner.supports_mm_inputs,
        "pooling": runner.is_pooling_model,
        # A window's blocks go to other requests while the step that reads them last is still under way.
        "attention without the whole context": not all(
            isinstance(group.kv_cache_spec, FullAttentionSpec) for group in groups
        ),
    }
    return next((name for name, there in found.items() if there), None)


def obstacle_now(runner: GPUModelRunner, flights: list[Flight]) -> str | None:
    """The same for steps that are under way."""
    worker = runner.prompt_logprobs_worker
    for flight in flights:
        assert flight.state is not None
        if worker is not None and worker.uses_prompt_logprobs[flight.state.input_batch.idx_mapping_np].any():
            return "prompt logprobs"
    return None
