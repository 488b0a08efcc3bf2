"""Writes small random MoE checkpoints in the published format, for tests and benchmarks on a CPU.

    python tools/toy_checkpoint.py deepseek-v2|deepseek-v3|qwen3-moe FOLDER [--seed N] [--layers N]

Weights are drawn with a large standard deviation (0.1), so that greedy decoding does not collapse into one token and
any wrong row shows in the output.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path

VOCABULARY = 320
HIDDEN = 128
STD = 0.1
Shapes = Iterator[tuple[str, tuple[int, ...]]]

_BASE: Mapping[str, object] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "attention_bias": False,
    "intermediate_size": 256,
}
_DEEPSEEK: Mapping[str, object] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "q_lora_rank": None,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": False,
    "n_group": 1,
    "topk_group": 1,
}
FAMILIES: Mapping[str, Mapping[str, object]] = {
    "deepseek-v2": {
        **_BASE,
        **_DEEPSEEK,
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "topk_method": "greedy",
        "scoring_func": "softmax",
    },
    "deepseek-v3": {
        **_BASE,
        **_DEEPSEEK,
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
        "q_lora_rank": 64,
        "num_nextn_predict_layers": 0,
    },
    "qwen3-moe": {
        **_BASE,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_experts": 8,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [0],
        "norm_topk_prob": True,
    },
}


def make(
    family: str, folder: Path, *, seed: int = 0, layers: int = 4, changes: Mapping[str, object] | None = None
) -> Path:
    """Writes config.json, model.safetensors and a byte-level tokenizer into ``folder`` and returns it.

    changes: keys of config.json that differ from the family's small defaults.
    """
    import torch
    from safetensors.torch import save_file

    config = {**FAMILIES[family], "num_hidden_layers": layers, **(changes or {})}
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in _shapes(config):
        if name.endswith("norm.weight"):
            tensors[name] = torch.ones(shape, dtype=torch.bfloat16)
        elif name.endswith("e_score_correction_bias"):
            tensors[name] = torch.randn(shape, generator=generator) * STD
        else:
            tensors[name] = (torch.randn(shape, generator=generator) * STD).to(torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model = files("afd_workers") / "demo" / "model"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(str(model / name), folder / name)
    return folder


def _shapes(config: Mapping[str, object]) -> Shapes:
    """Every tensor of the checkpoint with its shape."""
    hidden = _int(config, "hidden_size")
    yield "model.embed_tokens.weight", (VOCABULARY, hidden)
    for index in range(_int(config, "num_hidden_layers")):
        layer = f"model.layers.{index}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        deepseek = "kv_lora_rank" in config
        yield from _mla(config, layer) if deepseek else _gqa(config, layer)
        dense = index < _int(config, "first_k_dense_replace") if deepseek else index in _dense_layers(config)
        yield from _mlp(f"{layer}.mlp", _int(config, "intermediate_size"), hidden) if dense else _moe(config, layer)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (VOCABULARY, hidden)


def _mla(config: Mapping[str, object], layer: str) -> Shapes:
    hidden = _int(config, "hidden_size")
    heads, rope, nope = (_int(config, k) for k in ("num_attention_heads", "qk_rope_head_dim", "qk_nope_head_dim"))
    lora, value = _int(config, "kv_lora_rank"), _int(config, "v_head_dim")
    if config["q_lora_rank"] is None:
        yield f"{layer}.self_attn.q_proj.weight", (heads * (nope + rope), hidden)
    else:
        rank = _int(config, "q_lora_rank")
        yield f"{layer}.self_attn.q_a_proj.weight", (rank, hidden)
        yield f"{layer}.self_attn.q_a_layernorm.weight", (rank,)
        yield f"{layer}.self_attn.q_b_proj.weight", (heads * (nope + rope), rank)
    yield f"{layer}.self_attn.kv_a_proj_with_mqa.weight", (lora + rope, hidden)
    yield f"{layer}.self_attn.kv_a_layernorm.weight", (lora,)
    yield f"{layer}.self_attn.kv_b_proj.weight", (heads * (nope + value), lora)
    yield f"{layer}.self_attn.o_proj.weight", (hidden, heads * value)


def _gqa(config: Mapping[str, object], layer: str) -> Shapes:
    hidden = _int(config, "hidden_size")
    heads, kv_heads, width = (_int(config, k) for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    yield f"{layer}.self_attn.q_proj.weight", (heads * width, hidden)
    yield f"{layer}.self_attn.k_proj.weight", (kv_heads * width, hidden)
    yield f"{layer}.self_attn.v_proj.weight", (kv_heads * width, hidden)
    yield f"{layer}.self_attn.o_proj.weight", (hidden, heads * width)
    yield f"{layer}.self_attn.q_norm.weight", (width,)
    yield f"{layer}.self_attn.k_norm.weight", (width,)


def _moe(config: Mapping[str, object], layer: str) -> Shapes:
    hidden = _int(config, "hidden_size")
    experts = _int(config, "n_routed_experts" if "n_routed_experts" in config else "num_experts")
    width = _int(config, "moe_intermediate_size")
    yield f"{layer}.mlp.gate.weight", (experts, hidden)
    if config.get("topk_method") == "noaux_tc":
        yield f"{layer}.mlp.gate.e_score_correction_bias", (experts,)
    if "n_shared_experts" in config:
        yield from _mlp(f"{layer}.mlp.shared_experts", width * _int(config, "n_shared_experts"), hidden)
    for expert in range(experts):
        yield from _mlp(f"{layer}.mlp.experts.{expert}", width, hidden)


def _mlp(path: str, width: int, hidden: int) -> Shapes:
    yield f"{path}.gate_proj.weight", (width, hidden)
    yield f"{path}.up_proj.weight", (width, hidden)
    yield f"{path}.down_proj.weight", (hidden, width)


def _dense_layers(config: Mapping[str, object]) -> frozenset[int]:
    layers = config["mlp_only_layers"]
    return frozenset(layers) if isinstance(layers, list) else frozenset()


def _int(config: Mapping[str, object], key: str) -> int:
    value = config[key]
    if not isinstance(value, int):
        raise TypeError(f"Expected a number for {key}, found {value!r}.")
    return value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=sorted(FAMILIES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()
    print(make(options.family, options.folder, seed=options.seed, layers=options.layers))
