"""Sizes from config.json alone: published parameter counts, every toy's own tensors, and what a split changes."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_models.families import find, load
from afd_models.memory import Sizes, Split, sizes
from afd_models.numbers import is_sparse
from afd_models.pieces import TRAITS
from afd_workers.cli import main
from tools import toy_checkpoint
from tools.family_table import role_sizes

DEEPSEEK = {
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "moe_layer_freq": 1,
    "torch_dtype": "bfloat16",
}  # fmt: skip
V2_LITE = {
    **DEEPSEEK, "architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 27,
    "num_attention_heads": 16, "q_lora_rank": None, "n_routed_experts": 64, "n_shared_experts": 2,
    "moe_intermediate_size": 1408, "intermediate_size": 10944, "first_k_dense_replace": 1, "vocab_size": 102400,
    "topk_method": "greedy",
}  # fmt: skip
V3 = {
    **DEEPSEEK, "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "num_hidden_layers": 61,
    "num_attention_heads": 128, "q_lora_rank": 1536, "n_routed_experts": 256, "n_shared_experts": 1,
    "moe_intermediate_size": 2048, "intermediate_size": 18432, "first_k_dense_replace": 3, "vocab_size": 129280,
    "topk_method": "noaux_tc", "num_nextn_predict_layers": 1,
}  # fmt: skip
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
KIMI_K2 = {
    **V3, "num_attention_heads": 64, "n_routed_experts": 384, "first_k_dense_replace": 1, "vocab_size": 163840
}  # fmt: skip
QWEN3 = {
    "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "moe_intermediate_size": 768,
    "intermediate_size": 6144, "vocab_size": 151936, "mlp_only_layers": [], "decoder_sparse_step": 1,
    "torch_dtype": "bfloat16",
}  # fmt: skip
MIXTRAL = {
    "architectures": ["MixtralForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_local_experts": 8, "intermediate_size": 14336, "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}  # fmt: skip
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "hidden_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 128, "intermediate_size": 2880,
    "vocab_size": 201088, "attention_bias": True,
}  # fmt: skip
ERNIE = {
    **MIXTRAL, "architectures": ["Ernie4_5_MoeForCausalLM"], "num_hidden_layers": 8, "moe_num_experts": 8,
    "moe_intermediate_size": 64,
}  # fmt: skip
GLM4 = {
    **QWEN3, "architectures": ["Glm4MoeForCausalLM"], "n_routed_experts": 128, "n_shared_experts": 1,
}  # fmt: skip


def _groups(group: object) -> dict[str, object]:
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


NEXT = {
    **QWEN3, "architectures": ["Qwen3NextForCausalLM"], "num_attention_heads": 16, "num_key_value_heads": 2,
    "head_dim": 256, "num_experts": 512, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_value_head_dim": 128, "full_attention_interval": 4,
}  # fmt: skip
V1 = {
    "architectures": ["DeepseekForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 16, "n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1408,
    "intermediate_size": 10944, "first_k_dense_replace": 1, "moe_layer_freq": 1, "vocab_size": 102400,
    "torch_dtype": "bfloat16",
}  # fmt: skip
TOYS = toy_checkpoint.FAMILIES


def test_every_declared_family_has_sizes() -> None:
    assert set(TRAITS) == set(load())


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (V2_LITE, 15.7),
        (V3, 671.0),
        (KIMI_K2, 1026.4),
        (QWEN3, 30.5),
        (MIXTRAL, 46.7),
        (GPT_OSS, 116.8),
        (NEXT, 79.7),
        (V1, 16.4),
    ],
)
def test_published_parameter_counts(config: dict[str, object], billions: float) -> None:
    assert round(sizes(config).parameters / 1e9, 1) == billions


@pytest.mark.parametrize("name", TOYS)
def test_a_toys_parameters_are_those_of_its_checkpoint(name: str) -> None:
    config = {**TOYS[name].config, "num_hidden_layers": 4}
    assert sizes(config).parameters == sum(math.prod(shape) for _, shape in TOYS[name].shapes(config))


@pytest.mark.parametrize("name", TOYS)
def test_a_roles_parameters_are_those_that_its_names_say(name: str) -> None:
    _, spec = find(TOYS[name].config["architectures"])  # type: ignore[arg-type]
    found = sizes({**TOYS[name].config, "num_hidden_layers": 4})
    assert (found.parameters, found.attention_parameters, found.ffn_parameters) == role_sizes(TOYS[name], spec)


def test_linear_attention_takes_a_state_per_request_and_no_cache() -> None:
    found = sizes(NEXT)
    assert found.kv_per_token == 12 * 2 * 2 * 256 * 2
    assert found.state_per_request == 36 * 2 * (3 * (2 * 16 * 128 + 32 * 128) + 32 * 128 * 128)
    shared = sizes(NEXT, Split(attention_tp=2))
    assert (shared.kv_per_token, shared.state_per_request) == (found.kv_per_token // 2, found.state_per_request // 2)
    wide = sizes({**NEXT, "mamba_ssm_dtype": "float32"})
    assert wide.state_per_request - found.state_per_request == 36 * 2 * 32 * 128 * 128
    assert sizes({**NEXT, "layer_types": ["full_attention"] * 48}).state_per_request == 0


def test_deepseek_v3_as_published() -> None:
    found = sizes({**V3, "quantization_config": FP8})
    # 61 layers x 7168 elements of 2 bytes, there and back; 576 latent elements of 2 bytes in each layer.
    assert (found.exchanges, found.exchanged_per_token, found.kv_per_token) == (61, 61 * 7168 * 2 * 2, 61 * 576 * 2)
    # 58 layers of 257 experts of 3 x 7168 x 2048 bytes with a float32 scale for each 128 x 128 of them.
    experts = 58 * 257 * 3 * 7168 * 2048 * (1 + 4 / 128**2)
    dense = 3 * 3 * 7168 * 18432 * (1 + 4 / 128**2)
    gates = 58 * 256 * (7168 * 2 + 4)
    assert found.ffn == experts + dense + gates
    assert found.whole == found.attention + found.ffn - gates
    assert found.whole / found.attention > 35


def test_what_the_attention_role_keeps_moves_and_what_travels_with_it() -> None:
    base = sizes(V2_LITE)
    shared, dense, gates = 26 * 3 * 2048 * 2816 * 2, 3 * 2048 * 10944 * 2, 26 * 64 * 2048 * 2
    kept = sizes(V2_LITE, Split(shared_on_attention=True, dense_on_attention=True, gate_on_attention=True))
    assert kept.attention - base.attention == shared + dense  # it holds the gates either way
    assert base.ffn - kept.ffn == shared + dense + gates
    assert (kept.exchanges, base.exchanges) == (26, 27)
    assert kept.exchanged_per_token == 26 * (2 * 2048 * 2 + 64 * 2)


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.booleans())
def test_ranks_share_a_role_without_gaps(attention_tp: int, ffn_tp: int, expert_parallel: bool) -> None:
    one, some = sizes(QWEN3), sizes(QWEN3, Split(attention_tp, ffn_tp, expert_parallel))
    assert one.attention / attention_tp <= some.attention <= one.attention
    assert one.ffn / ffn_tp <= some.ffn <= one.ffn
    assert some.kv_per_token == 48 * 2 * max(1, 4 // attention_tp) * 128 * 2
    assert (some.whole, some.parameters, some.exchanged_per_token) == (
        one.whole, one.parameters, one.exchanged_per_token,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("quantization", "expert"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, (4 + (16 + 4) / 128) / 8),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, (4 + (16 + 4) / 128) / 8),
        (
            {
                "quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*self_attn.*", "re:.*mlp.gate$"],
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 4, "strategy": "group", "group_size": 32}, "targets": []}
                },
            },
            (4 + 16 / 32) / 8,
        ),
    ],
)  # fmt: skip
def test_quantised_experts_take_their_bits_and_scales(quantization: dict[str, object], expert: float) -> None:
    gates = 48 * 128 * 2048 * 2
    assert sizes({**QWEN3, "quantization_config": quantization}).ffn - gates == 48 * 128 * 3 * 2048 * 768 * expert


def test_attention_that_is_not_quantised_keeps_its_size() -> None:
    ignored = {**FP8, "modules_to_not_convert": ["self_attn"]}
    assert sizes({**QWEN3, "quantization_config": ignored}).attention == sizes(QWEN3).attention
    assert sizes({**QWEN3, "quantization_config": FP8}).attention < sizes(QWEN3).attention


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, r"sizes are known .*found LlamaForCausalLM"),
        ({"architectures": None}, "found no architecture"),
        ({"hidden_size": None}, "Expected hidden_size in config.json"),
        ({"hidden_size": "wide"}, "a whole number for hidden_size in config.json, found 'wide'"),
        ({"torch_dtype": "int8"}, "a dtype of float32, float16, bfloat16"),
        ({"quantization_config": {"quant_method": "other"}}, "quant_method fp8, awq, gptq or compressed-tensors"),
        ({"quantization_config": []}, "a mapping for quantization_config"),
        ({"hidden_size": None}, r"hidden_size in config.json, found none: give"),
        ({"hidden_size": True}, "a whole number for hidden_size in config.json, found True"),
        ({"num_experts": 0}, "Expected 1 to 1000000000 for num_experts in config.json, found 0: correct it"),
        ({"decoder_sparse_step": 0}, "1 to 1000000000 for decoder_sparse_step"),
        ({"num_hidden_layers": 10_001}, "Expected 1 to 10000 for num_hidden_layers in config.json, found 10001"),
        ({"num_attention_heads": 0}, "for num_attention_heads in config.json, found 0"),
        ({"head_dim": None, "hidden_size": 8}, "num_attention_heads=32, in config.json, found hidden_size=8"),
        ({"hidden_size": "w" * 999}, r"found 'w+\.\.\.w+': correct it"),
        ({"quantization_config": {**FP8, "weight_block_size": [128]}}, r"two whole numbers for weight_block.*\[128\]"),
        ({"quantization_config": {**FP8, "weight_block_size": [0, 8]}}, "at least 1 for weight_block_size"),
        ({"quantization_config": {**FP8, "ignored_layers": [1]}}, r"a list of names for ignored_layers .*found \[1\]"),
        ({"quantization_config": {**FP8, "modules_to_not_convert": "a"}}, "a list of names for modules_to_not_convert"),
        ({"quantization_config": {**FP8, "ignore": ["re:("]}}, r"regular expressions after re: .*found 're:\('"),
        ({"quantization_config": {"quant_method": "awq", "group_size": 8}}, "for bits .*, found None"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "for group_size .*, found None"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 0, "group_size": 8}}, "for bits .*, found 0"),
        ({"quantization_config": _groups([])}, r"a mapping for weights .*, found \[\]"),
        ({"quantization_config": _groups({"weights": {"num_bits": 0}})}, "at least 1 for num_bits .*, found 0"),
        ({"quantization_config": _groups({"weights": {"num_bits": 4, "strategy": "group"}})}, "for group_size .*None"),
        ({"quantization_config": _groups({"weights": {"num_bits": 8, "strategy": "block"}})}, "for block_structure"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "a mapping for config_groups"),
    ],
)
def test_what_is_wrong_with_a_config_is_said_in_a_sentence(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        sizes({**QWEN3, **changes})


@pytest.mark.parametrize(
    ("config", "split", "sentence"),
    [
        (MIXTRAL, Split(gate_on_attention=True), "compute_gate_on_attention needs .*found MixtralForCausalLM"),
        (MIXTRAL, Split(shared_on_attention=True), "shared_experts_on_attention needs .*exchanges whole MixtralMoE"),
        (QWEN3, Split(shared_on_attention=True), "shared_on_attention needs a model with shared experts, found none"),
        (QWEN3, Split(dense_on_attention=True), "dense_on_attention needs a model with layers without experts"),
        (
            {**QWEN3, "decoder_sparse_step": 49},
            Split(gate_on_attention=True),
            "gate_on_attention needs a model with layers of experts, found none: leave it out",
        ),
        (NEXT, Split(gate_on_attention=True), "gate_on_attention needs a model whose gate stands alone"),
        (
            {**NEXT, "linear_num_key_heads": 4},
            Split(attention_tp=8),
            "divide the model's linear_num_key_heads=4, found 8: give a divisor",
        ),
        (V2_LITE, Split(shared_on_attention=True, attention_tp=2), "shared_on_attention needs .*tp=1, .*found 2"),
        (V2_LITE, Split(ffn_tp=3), "ffn_tp to divide the width 1408 of model.layers.1.mlp.experts.0.*, found 3: give"),
        (V2_LITE, Split(ffn_tp=7, expert_parallel=True), "ffn_tp to divide the width .*, found 7: give a divisor"),
        (QWEN3, Split(attention_tp=3), "divide the model's 32 attention heads, found 3: give a divisor"),
        ({**QWEN3, "num_key_value_heads": 3}, Split(attention_tp=2), "the model's 3 key-value heads or be a multiple"),
    ],
)
def test_what_serving_refuses_has_no_sizes(config: dict[str, object], split: Split, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        sizes(config, split)


def test_a_cache_element_has_a_byte_or_more() -> None:
    assert sizes(QWEN3, kv_bytes=1).kv_per_token * 2 == sizes(QWEN3).kv_per_token
    with pytest.raises(ValueError, match="at least 1 byte per element of the KV cache, found 0"):
        sizes(QWEN3, kv_bytes=0)


def test_router_logits_in_float32_take_twice_the_bytes() -> None:
    split, wide = Split(gate_on_attention=True), {**V3, "moe_router_dtype": "float32"}
    more = sizes(wide, split).exchanged_per_token - sizes(V3, split).exchanged_per_token
    assert more == 58 * 256 * 2


@pytest.mark.parametrize(
    ("changes", "sparse"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7]),
        ({"moe_layer_start_index": 2, "moe_layer_end_index": 5}, [2, 3, 4, 5]),
        ({"moe_layer_interval": 2, "moe_layer_start_index": 0, "moe_layer_end_index": -1}, [1, 3, 5, 7]),
        ({"use_moe": False}, []),
    ],
)
def test_ernie_says_which_layers_have_experts(changes: dict[str, object], sparse: list[int]) -> None:
    assert [layer for layer in range(8) if is_sparse({**ERNIE, **changes}, layer)] == sparse


def test_glm_norms_queries_and_keys_where_asked_to() -> None:
    without = sizes(GLM4).parameters
    assert sizes({**GLM4, "use_qk_norm": True}).parameters - without == 48 * 2 * 128


def test_zero_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="Expected ffn_tp of at least 1, found 0"):
        Split(ffn_tp=0)


def test_the_command_prints_the_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3))
    assert main(["size", str(tmp_path), "--ffn-tp", "4"]) == 0
    found: Sizes = sizes(QWEN3, Split(ffn_tp=4))
    said = capsys.readouterr().out
    assert f"parameters: {found.parameters:,}\n" in said
    assert f"weights of one FFN rank: {found.ffn:,} bytes" in said
    assert "KV cache: 98,304 bytes per token on one attention rank" in said


def test_the_command_names_the_state_of_linear_attention(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(NEXT))
    assert main(["size", str(tmp_path)]) == 0
    assert f"state of linear attention: {sizes(NEXT).state_per_request:,} bytes per request" in capsys.readouterr().out


def test_a_wrapped_text_model_has_what_is_said_outside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outer = {"architectures": QWEN3["architectures"], "dtype": "float32", "quantization_config": FP8}
    (tmp_path / "config.json").write_text(json.dumps({**outer, "text_config": QWEN3}))
    assert main(["size", str(tmp_path)]) == 0
    found = sizes({**QWEN3, "torch_dtype": "float32", "quantization_config": FP8})
    assert f"weights of the whole model: {found.whole:,} bytes" in capsys.readouterr().out


def test_only_a_regular_file_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert main(["size", str(tmp_path)]) == 2
    assert "(not a regular file): download" in capsys.readouterr().err


def test_weights_in_place_of_a_config_are_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = tmp_path / "model.safetensors"
    weights.touch()
    os.truncate(weights, 1 << 40)
    assert main(["size", str(weights)]) == 2
    assert "(1,099,511,627,776 bytes, more than 64 MiB): download" in capsys.readouterr().err


def test_a_name_that_no_file_can_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", "x" * 5000]) == 2
    assert "File name too long" in capsys.readouterr().err


@pytest.mark.parametrize("text", [None, "{", "[]", "[" * 100_000])
def test_the_command_says_what_it_needs(text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert main(["size", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("afd size: Expected a m")
    assert said.count("\n") == 1
