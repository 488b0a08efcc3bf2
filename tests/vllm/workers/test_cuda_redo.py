"""What surrounds running a step again: what rules it out, and that waiting for the device ends."""

from __future__ import annotations

import time
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec

from afd_connectors.errors import PeerLost
from afd_workers.cuda_flight import Flight, obstacle, obstacle_now
from afd_workers.cuda_redo import drained

SIZES = {"block_size": 16, "num_kv_heads": 1, "head_size": 8, "dtype": torch.bfloat16}


def runner(*specs: object, config: dict[str, object] | None = None, **changes: object) -> SimpleNamespace:
    defaults = {
        "speculative_config": None, "lora_config": None, "kv_transfer_config": None,
        "parallel_config": SimpleNamespace(pipeline_parallel_size=1, tensor_parallel_size=1),
    }  # fmt: skip
    groups = [SimpleNamespace(kv_cache_spec=spec) for spec in specs]
    found = {
        "vllm_config": SimpleNamespace(**{**defaults, **(config or {})}),
        "kv_cache_config": SimpleNamespace(kv_cache_groups=groups),
        "pcp_manager": None, "supports_mm_inputs": False, "is_pooling_model": False,
    }  # fmt: skip
    return SimpleNamespace(**{**found, **changes})


def test_plain_models_can_be_run_again() -> None:
    assert obstacle(runner(FullAttentionSpec(**SIZES), MLAAttentionSpec(**SIZES))) is None


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (runner(SlidingWindowSpec(**SIZES, sliding_window=64)), "attention without the whole context"),
        (runner(config={"speculative_config": object()}), "speculative decoding"),
        (runner(config={"kv_transfer_config": object()}), "a KV connector"),
        (
            runner(config={"parallel_config": SimpleNamespace(pipeline_parallel_size=1, tensor_parallel_size=2)}),
            "tensor parallelism",
        ),
        (runner(is_pooling_model=True), "pooling"),
    ],
)
def test_what_rules_it_out_is_named(found: SimpleNamespace, told: str) -> None:
    assert obstacle(found) == told


def test_a_request_for_prompt_logprobs_rules_it_out_while_it_is_there() -> None:
    worker = SimpleNamespace(uses_prompt_logprobs=np.array([False, True]))

    def flight(slot: int) -> Flight:
        return Flight(state=SimpleNamespace(input_batch=SimpleNamespace(idx_mapping_np=np.array([slot]))))

    with_worker = SimpleNamespace(prompt_logprobs_worker=worker)
    assert obstacle_now(with_worker, [flight(0)]) is None
    assert obstacle_now(with_worker, [flight(0), flight(1)]) == "prompt logprobs"


class FakeEvent:
    """Never done unless told."""

    done = False

    def record(self, _stream: object) -> None:
        return

    def query(self) -> bool:
        return self.done


def test_a_device_that_does_not_let_go_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    port = SimpleNamespace(awaiting=nullcontext)
    began = time.monotonic()
    with pytest.raises(PeerLost, match=r"did not end the steps of a lost FFN rank within 0.2 s; restart this server"):
        drained(SimpleNamespace(main_stream=None), port, 0.1)
    assert time.monotonic() - began < 3
    monkeypatch.setattr(FakeEvent, "done", True)
    drained(SimpleNamespace(main_stream=None), port, 0.1)
