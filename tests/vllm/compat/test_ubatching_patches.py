"""The scoped patches of dual-batch overlap: vLLM's own functions, with the decision that one rank alone can take."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest
from vllm.config import CUDAGraphMode
from vllm.forward_context import ForwardContext
from vllm.v1.worker.gpu import dp_utils, model_runner, ubatch_utils
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor, CudaGraphManager
from vllm.v1.worker.ubatch_utils import UBatchSlice

from afd_compat.patches import gpu_mrv2_ubatching
from afd_compat.patches.gpu_mrv2_ubatching import build_at_one_rank, split_at_one_rank
from afd_compat.scoped import Scope
from tests.support import ubatches

FULL, NONE = CUDAGraphMode.FULL, CUDAGraphMode.NONE


def manager(*sizes: int, count: int = 2) -> CudaGraphManager:
    """vLLM's own manager with captured decode graphs of `sizes`, whole and split."""
    made = object.__new__(CudaGraphManager)
    made._graphs_captured, made._lora_dispatch_map, made._max_lora_case = True, {}, 0
    made._candidates = {}
    for tokens in range(1, max(sizes) + 1):
        padded = min(size for size in sizes if size >= tokens)
        made._candidates[tokens, 0] = [
            BatchExecutionDescriptor(FULL, padded, padded, uniform_token_count=1, num_ubatches=parts)
            for parts in (1, count)
        ]
    return made


def dispatch(graphs: CudaGraphManager | None, rows: int, config: object, **more: object) -> BatchExecutionDescriptor:
    """As the model runner calls it, of a decode batch."""
    given: dict[str, object] = {
        "max_query_len": 1, "need_eager": False, "num_active_loras": 0, "parallel_config": config,
        "allow_ubatching": True, "uniform_decode": True, **more,
    }  # fmt: skip
    descriptor, sync = model_runner.dispatch_cg_and_sync_dp(graphs, rows, rows, 1, 1, 0, **given)
    assert sync is None
    return descriptor


def test_the_names_that_the_runner_holds_are_patched_inside_only() -> None:
    native = dp_utils.dispatch_cg_and_sync_dp, ubatch_utils.maybe_build_ubatch_runner
    with Scope(split_at_one_rank, build_at_one_rank):
        held = model_runner.dispatch_cg_and_sync_dp, model_runner.maybe_build_ubatch_runner
        assert all(a is not b for a, b in zip(held, native, strict=True))
        assert [inspect.signature(each) for each in held] == [inspect.signature(each) for each in native]
    assert (model_runner.dispatch_cg_and_sync_dp, model_runner.maybe_build_ubatch_runner) == native
    assert (dp_utils.dispatch_cg_and_sync_dp, ubatch_utils.maybe_build_ubatch_runner) == native


def test_a_decode_batch_above_the_threshold_runs_from_the_split_graph() -> None:
    parallel, graphs = ubatches.config(decode=32).parallel_config, manager(32, 64)
    with Scope(split_at_one_rank):
        assert dispatch(graphs, 60, parallel) == BatchExecutionDescriptor(
            FULL, 64, 64, uniform_token_count=1, num_ubatches=2
        )
        assert dispatch(graphs, 31, parallel).num_ubatches == 1
        parallel.dbo_decode_token_threshold = 61
        assert dispatch(graphs, 60, parallel).num_ubatches == 1


def test_what_has_no_split_graph_keeps_its_graph_and_eager_steps_are_split() -> None:
    parallel = ubatches.config(decode=32).parallel_config
    with Scope(split_at_one_rank):
        unsplit = manager(64, count=1)
        assert dispatch(unsplit, 60, parallel) == BatchExecutionDescriptor(FULL, 64, 64, uniform_token_count=1)
        assert dispatch(unsplit, 100, parallel) == BatchExecutionDescriptor(NONE, 100, 100, num_ubatches=2)
        prefill = dispatch(manager(64), 700, parallel, uniform_decode=False)
        assert prefill == BatchExecutionDescriptor(NONE, 700, 700, num_ubatches=2)
        assert dispatch(manager(64), 500, parallel, uniform_decode=False).num_ubatches == 1


def test_a_second_microbatch_of_padding_alone_is_not_made() -> None:
    parallel, graphs = ubatches.config(decode=2).parallel_config, manager(64)
    with Scope(split_at_one_rank):
        assert dispatch(graphs, 32, parallel).num_ubatches == 1
        assert dispatch(graphs, 33, parallel).num_ubatches == 2


@pytest.mark.parametrize(
    "more", [{"allow_ubatching": False}, {"need_eager": True}, {"parallel_config": None}, {"off": True}]
)
def test_elsewhere_the_native_is_called_once_with_the_same_arguments(
    more: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    parallel = ubatches.config(dbo="off" not in more).parallel_config
    calls = []
    monkeypatch.setattr(
        dp_utils, "dispatch_cg_and_sync_dp", native := lambda *args, **kwargs: calls.append((args, kwargs)) or "native"
    )
    monkeypatch.setattr(model_runner, "dispatch_cg_and_sync_dp", native)
    kwargs = {"allow_ubatching": True, "parallel_config": parallel, **more}
    kwargs.pop("off", None)
    with Scope(split_at_one_rank):
        assert model_runner.dispatch_cg_and_sync_dp("graphs", 64, 64, 1, 1, 0, None, **kwargs) == "native"
        assert model_runner.dispatch_cg_and_sync_dp("graphs", 64, 64, 1, 2, 0, **kwargs) == "native"
    assert calls == [(("graphs", 64, 64, 1, 1, 0, None), kwargs), (("graphs", 64, 64, 1, 2, 0), kwargs)]


def build(config: object) -> object:
    """As the model runner calls it."""
    return model_runner.maybe_build_ubatch_runner(config, SimpleNamespace(index=0), "state", ["groups"], "cache", 8)


def test_one_rank_gets_vllms_runner_with_the_real_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    ubatches.stand_in(monkeypatch)
    monkeypatch.setattr(ubatch_utils.torch, "zeros", lambda *_, **__: "buffer", raising=False)
    config = ubatches.config()
    assert build(config) is None
    with Scope(build_at_one_rank):
        runner = build(config)
    assert type(runner) is ubatch_utils.UBatchRunner
    assert runner.vllm_config is config
    assert runner.parallel_config is config.parallel_config
    assert config.parallel_config.data_parallel_size == 1
    with runner.sm_control, runner.sm_control:
        assert runner.sm_control is not None
    assert (runner.num_ubatches, runner.ready_barrier.parties) == (2, 3)
    slices = [UBatchSlice(slice(0, 2), slice(0, 2)), UBatchSlice(slice(2, 4), slice(2, 5))]
    made = runner._make_forward_contexts(slices, ["a", "b"], [{"k": 1}, {"k": 2}], [None, "padding"])
    assert all(isinstance(each, ForwardContext) and each.dp_metadata is None for each in made)
    assert [(each.attn_metadata, each.slot_mapping, each.is_padding) for each in made] == [
        ("a", {"k": 1}, None), ("b", {"k": 2}, "padding"),
    ]  # fmt: skip
    assert all(each.ubatch_slices == slices for each in made)


@pytest.mark.parametrize(("dp", "dbo"), [(1, False), (2, True), (2, False)])
def test_another_configuration_gets_what_vllm_makes(dp: int, dbo: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ubatches.config(dp=dp, dbo=dbo)
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(ubatch_utils, "maybe_build_ubatch_runner", native := lambda *a: calls.append(a) or "native")
    monkeypatch.setattr(model_runner, "maybe_build_ubatch_runner", native)
    with Scope(build_at_one_rank):
        assert build(config) == "native"
    assert len(calls) == 1
    assert calls[0][0] is config
    assert calls[0][2:] == ("state", ["groups"], "cache", 8)


def test_a_thread_that_never_comes_is_not_waited_for_without_an_end() -> None:
    assert gpu_mrv2_ubatching.MEET_S <= 60
