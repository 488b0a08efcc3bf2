"""What this version cannot do is refused by name, and what vLLM leaves unset is not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from afd_compat.config import Config
from afd_connectors import registry
from afd_connectors.ports import Connector
from afd_models.families import load
from afd_workers import platform, refusals

DEFAULTS = {
    "pipeline_parallel_size": 1,
    "tensor_parallel_size": 1,
    "prefill_context_parallel_size": 1,
    "decode_context_parallel_size": 1,
    "enable_eplb": False,
    "enable_elastic_ep": False,
    "speculative_config": None,
    "enable_lora": None,
    "spec_method": None,
    "spec_model": None,
    "spec_tokens": None,
    "enable_sleep_mode": False,
    "enable_return_routed_experts": False,
    "weight_transfer_config": None,
    "data_parallel_size": 1,
    "load_format": "auto",
}

#: What differs between platforms.
PLATFORM = {"enable_expert_parallel": False, "enable_dbo": False, "ubatch_size": 0}


def check(role: str = "attention", section: dict[str, object] | None = None, **changes: object) -> None:
    config = Config.parse({"role": role, **(section or {})}, {})
    refusals.check(SimpleNamespace(**{**DEFAULTS, **changes}), config)


@pytest.mark.parametrize("role", ["attention", "ffn"])
def test_defaults_are_accepted(role: str) -> None:
    check(role)


def test_attention_may_be_data_parallel_and_both_roles_tensor_parallel() -> None:
    check(data_parallel_size=4, tensor_parallel_size=2)
    check("ffn", tensor_parallel_size=2)


@pytest.mark.parametrize("role", ["attention", "ffn"])
def test_formats_of_whole_models_are_refused_and_others_are_not(role: str) -> None:
    for name in ("dummy", "hf", "safetensors", "pt", "npcache", "fastsafetensors", "runai_streamer", None):
        check(role, load_format=name)
    for name in ("sharded_state", "runai_streamer_sharded", "tensorizer", "ipc_cache", "modelexpress"):
        for spelling in (name, name.upper(), name.title()):  # vLLM lowers what it is given
            with pytest.raises(ValueError, match=rf"{role} role cannot take .* what load_format={spelling} loads"):
                check(role, load_format=spelling)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("pipeline_parallel_size", 2),
        ("prefill_context_parallel_size", 2),
        ("decode_context_parallel_size", 2),
        ("enable_eplb", True),
        ("enable_elastic_ep", True),
        ("enable_sleep_mode", True),
        ("enable_return_routed_experts", True),
        ("weight_transfer_config", object()),
    ],
)
@pytest.mark.parametrize("role", ["attention", "ffn"])
def test_each_unsupported_option_is_named_with_what_to_do(role: str, option: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^AFD's {role} role needs {option}=\w+, found .*: \w.*\.$"):
        check(role, **{option: value})


@pytest.mark.parametrize(
    ("option", "value"),
    [("speculative_config", {"method": "ngram"}), ("spec_method", "ngram"), ("spec_tokens", 3), ("enable_lora", True)],
)
def test_what_was_compared_on_cpu_only_is_refused_on_cuda(option: str, value: object) -> None:
    options = SimpleNamespace(**{**DEFAULTS, **PLATFORM, option: value})
    config = Config.parse({"role": "attention"}, {})
    refusals.check(options, config)
    refusals.check_platform(platform.choose("cpu"), options, config)
    with pytest.raises(
        ValueError, match=rf"needs {option}=\w+, found .*: leave .* out, it was compared .* on CPU only\.$"
    ):
        refusals.check_on(platform.choose("cuda").needed, options, config)


@pytest.mark.parametrize(("option", "value"), [("enable_dbo", True), ("ubatch_size", 2)])
@pytest.mark.parametrize("role", ["attention", "ffn"])
def test_on_cpu_dual_batch_overlap_is_not_there_by_name(role: str, option: str, value: object) -> None:
    options = SimpleNamespace(**{**PLATFORM, option: value})
    config = Config.parse({"role": role}, {})
    with pytest.raises(
        ValueError, match=rf"needs {option}=\w+, found {value}: leave dual-batch overlap out, .* on CPU\.$"
    ):
        refusals.check_on(platform.choose("cpu").needed, options, config)
    if option == "ubatch_size":
        with pytest.raises(ValueError, match="needs ubatch_size=0, found 2: use enable_dbo on both roles"):
            refusals.check_on(_overlap(), options, config)


@pytest.mark.parametrize("role", ["attention", "ffn"])
def test_experts_are_spread_over_an_ffn_ranks_processes_on_cuda_only(role: str) -> None:
    options = SimpleNamespace(**{**DEFAULTS, **PLATFORM, "enable_expert_parallel": True, "tensor_parallel_size": 2})
    config = Config.parse({"role": role, "num_attention_ranks": 2}, {})
    refusals.check_platform(platform.choose("cuda"), options, config)
    with pytest.raises(ValueError, match=r"needs enable_expert_parallel=False, found True: leave it out, each FFN"):
        refusals.check_platform(platform.choose("cpu"), options, config)


@pytest.mark.parametrize("option", ["tensor_parallel_size", "data_parallel_size"])
def test_overlap_is_for_roles_of_one_process_on_cuda(option: str) -> None:
    options = SimpleNamespace(**{**DEFAULTS, **PLATFORM, "enable_dbo": True, option: 2})
    config = Config.parse({"role": "attention", "num_attention_ranks": 2}, {})
    with pytest.raises(ValueError, match=rf"needs {option}=1, found 2: set it to 1, or leave dual-batch overlap out"):
        refusals.check_platform(platform.choose("cuda"), options, config)


@pytest.mark.parametrize(
    ("replicas", "tensor", "ffn", "fine"),
    [(1, 2, 1, True), (1, 2, 2, False), (2, 2, 2, True), (2, 2, 4, False), (3, 2, 2, False), (4, 1, 8, True)],
)
def test_a_tensor_parallel_replica_on_cuda_reaches_one_ffn_rank(
    replicas: int, tensor: int, ffn: int, fine: bool
) -> None:
    sizes = {"data_parallel_size": replicas, "tensor_parallel_size": tensor}
    options = SimpleNamespace(**{**DEFAULTS, **PLATFORM, **sizes})
    given = {"role": "attention", "num_attention_ranks": replicas * tensor, "num_ffn_ranks": ffn}
    config = Config.parse(given, {})
    refusals.check_platform(platform.choose("cpu"), options, config)
    if fine:
        refusals.check_platform(platform.choose("cuda"), options, config)
    else:
        with pytest.raises(ValueError, match=r"^Expected one FFN rank for the 2 tensor-parallel processes .* use few"):
            refusals.check_platform(platform.choose("cuda"), options, config)


@pytest.mark.parametrize("method", ["ngram", "mtp", "eagle3", "draft_model"])
def test_drafters_that_nobody_compared_are_refused_by_name(method: str) -> None:
    found = SimpleNamespace(method=method)
    refusals.check_speculation(None)
    if method in ("ngram", "mtp"):
        refusals.check_speculation(found)
    else:
        with pytest.raises(ValueError, match=rf"needs speculative decoding by ngram or mtp, found {method}: choose"):
            refusals.check_speculation(found)


def _overlap() -> tuple[tuple[str, object, str], ...]:
    return tuple(each for each in platform.choose("cuda").needed if each[0] == "ubatch_size")


def test_ffn_data_parallelism_says_how_to_get_more_ranks() -> None:
    with pytest.raises(ValueError, match=r"needs data_parallel_size=1, found 2: start one server per FFN rank instead"):
        check("ffn", data_parallel_size=2)


def test_a_gate_on_attention_needs_a_connector_that_carries_its_logits() -> None:
    config = Config.parse({"role": "attention", "compute_gate_on_attention": True}, {})
    for name in ("loopback", "shm", "tcp"):
        refusals.check_connector(registry.resolve(name, "cpu"), config)
    bare = type("Bare", (Connector,), {"name": "bare", "features": frozenset({"graph"})})
    with pytest.raises(ValueError, match=r"^compute_gate_on_attention needs a connector .*, found 'bare': set it to"):
        refusals.check_connector(bare, config)
    refusals.check_connector(bare, Config.parse({"role": "attention"}, {}))


def test_shared_experts_of_several_attention_ranks_are_refused() -> None:
    section: dict[str, object] = {"shared_experts_on_attention": True}
    with pytest.raises(
        ValueError, match=r"^AFD's attention role needs tensor_parallel_size=1, found 2: set it to 1, or"
    ):
        check("attention", section, tensor_parallel_size=2)
    check("ffn", section, tensor_parallel_size=2)
    check("attention", section)


@pytest.mark.parametrize("key", ["dense_layers_on_attention", "shared_experts_on_attention"])
@pytest.mark.parametrize("role", ["attention", "ffn"])
def test_adapters_are_refused_where_attention_holds_parts_of_ffns(role: str, key: str) -> None:
    check(role, {key: True})
    check(role, {key: False}, enable_lora=True)
    with pytest.raises(ValueError, match=rf"needs enable_lora=False, found True: leave LoRA out, or set {key} to fal"):
        check(role, {key: True}, enable_lora=True)


@pytest.mark.parametrize("key", ["compute_gate_on_attention", "shared_experts_on_attention"])
def test_what_a_block_holds_stays_with_it(key: str) -> None:
    config = Config.parse({"role": "attention", key: True}, {})
    known = load()
    refusals.check_block(known["Qwen3MoeForCausalLM"], config)
    with pytest.raises(
        ValueError,
        match=rf"^{key} needs a model whose .*, found GptOssForCausalLM, of which AFD exchanges whole .*: set it",
    ):
        refusals.check_block(known["GptOssForCausalLM"], config)


def test_experts_without_a_kernel_are_refused_by_their_quantization() -> None:
    for quantization, amx in ((None, False), ("fp8", False), ("gpt_oss_mxfp4", True)):
        refusals.check_kernels(quantization, amx=amx)
    with pytest.raises(
        ValueError, match=r"^vLLM has no kernel for gpt_oss_mxfp4 experts .*: serve a checkpoint with bf"
    ):
        refusals.check_kernels("gpt_oss_mxfp4", amx=False)


@pytest.mark.parametrize(
    ("section", "dp", "tp", "fits"),
    [
        ({"role": "attention", "num_attention_ranks": 2}, 2, 1, True),
        ({"role": "attention", "num_attention_ranks": 2}, 1, 2, True),
        ({"role": "attention", "num_attention_ranks": 2}, 2, 2, False),
        ({"role": "attention", "num_attention_ranks": 4, "rank": 2}, 1, 2, True),
        ({"role": "attention", "num_attention_ranks": 2, "rank": 1}, 1, 1, True),
        ({"role": "attention", "num_attention_ranks": 2, "rank": 1}, 2, 1, False),
        ({"role": "ffn", "num_ffn_ranks": 2, "rank": 2}, 1, 1, False),
        ({"role": "ffn", "num_ffn_ranks": 2, "rank": 1}, 1, 2, True),
        ({"role": "ffn", "num_attention_ranks": 4}, 1, 1, True),
    ],
)
def test_ranks_must_lie_within_their_role(section: dict[str, object], dp: int, tp: int, fits: bool) -> None:
    parallel = SimpleNamespace(data_parallel_size=dp, tensor_parallel_size=tp, prefill_context_parallel_size=1)
    config = Config.parse(section, {})
    if fits:
        refusals.check_ranks(parallel, config)
    else:
        with pytest.raises(ValueError, match=r"^Expected the ranks of this \w+ server within num_\w+_ranks=2, found "):
            refusals.check_ranks(parallel, config)


def test_cpu_is_there_and_the_others_say_what_is_not_there_yet() -> None:
    assert platform.choose("cpu").eager_only
    assert not platform.choose("cuda").eager_only
    with pytest.raises(ValueError, match=r"AFD runs on \(cpu, cuda\), found npu: .*\."):
        platform.choose("npu")
    with pytest.raises(ValueError, match=r"AFD runs on \(cpu, cuda\), found tpu: use one of these\."):
        platform.choose("tpu")
