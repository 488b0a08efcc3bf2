"""The parts of running a step of vLLM's second model runner again: what it left behind, its inputs, its sampling."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from afd_connectors.errors import PeerLost

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    from afd_connectors.stepped import DeviceAttentionPort
    from afd_workers.cuda_flight import Flight, Output

POLL_S = 0.0005


def drained(runner: GPUModelRunner, port: DeviceAttentionPort, limit_s: float) -> None:
    """Waits until the device has let go of what lost ranks were to answer; PeerLost when it does not in time."""
    event = torch.cuda.Event()
    event.record(runner.main_stream)
    until = time.monotonic() + 2 * limit_s
    with port.awaiting():
        while not event.query():
            if time.monotonic() > until:
                told = f"the device did not end the steps of a lost FFN rank within {2 * limit_s:g} s"
                raise PeerLost(f"{told}; restart this server.")
            time.sleep(POLL_S)


def uncount(runner: GPUModelRunner, flight: Flight) -> None:
    """Takes a void step's tokens out of the counts that penalties are computed from."""
    sampled = getattr(flight.output, "sampler_output", None)
    if sampled is None or runner.sampler is None or flight.state is None:
        return
    penalties, batch = runner.sampler.penalties_state, flight.state.input_batch
    rows = [
        row
        for row, owned in enumerate(flight.owned(runner))
        if owned and penalties.use_penalty[batch.idx_mapping_np[row]]
    ]
    if rows:
        chosen = torch.tensor(rows, device=batch.idx_mapping.device)
        places = (batch.idx_mapping[chosen].long(), sampled.sampled_token_ids[chosen, 0].long())
        counts = -sampled.num_sampled[chosen].to(penalties.output_bin_counts.dtype)
        penalties.output_bin_counts.index_put_(places, counts, accumulate=True)


def recombine(runner: GPUModelRunner, flight: Flight) -> None:
    """Puts the tokens that the step before has sampled by now into the inputs of this one."""
    from vllm.v1.worker.gpu.input_batch import combine_sampled_and_draft_tokens

    assert flight.state is not None
    states, batch = runner.req_states, flight.state.input_batch
    combine_sampled_and_draft_tokens(
        runner.input_buffers.input_ids,
        batch.idx_mapping,
        states.last_sampled_tokens,
        batch.query_start_loc,
        batch.seq_lens,
        states.prefill_len.gpu,
        states.draft_tokens,
        batch.cu_num_logits,
        batch.logits_indices.shape[0],
        runner.model_state.num_new_sampled_tokens_per_step,
    )


def sampled_again(runner: GPUModelRunner, flight: Flight) -> Output:
    """Samples as vLLM does; what it notes of requests whose slot another one has by now is not noted."""
    owned = flight.owned(runner)
    if all(owned):
        return runner.sample_tokens(flight.grammar)
    native = runner.postprocess_sampled

    def postprocess_sampled(rows: Tensor, *args: object, **kwargs: object) -> None:
        kept = torch.tensor(owned, device=rows.device)
        native(torch.where(kept, rows, -1), *args, **kwargs)  # vLLM passes over rows without a slot

    runner.postprocess_sampled = postprocess_sampled
    try:
        return runner.sample_tokens(flight.grammar)
    finally:
        del runner.postprocess_sampled
