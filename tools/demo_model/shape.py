"""The demo model's configuration and tokenizer, written out so that no library's defaults can change them."""

import json
from pathlib import Path

BOS, EOS = 256, 257
EXPERTS_PER_TOKEN = 2

CONFIG: dict[str, object] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "torch_dtype": "bfloat16",
    "vocab_size": 258,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.06,
    "tie_word_embeddings": False,
    "use_cache": True,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    # Attention. vLLM's latent-attention kernels for CPU are built for a rank of 512 and 64 rotary dimensions.
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    # Feed-forward: the first layer is dense, the others route each token to 2 of 8 experts.
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": EXPERTS_PER_TOKEN,
    "n_shared_experts": 1,
    "moe_intermediate_size": 128,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
}


def _symbols() -> list[str]:
    """The printable character that byte-level tokenizers write for each byte value, by value."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [value for value in range(256) if value not in printable]
    return [chr(value if value in printable else 256 + others.index(value)) for value in range(256)]


def _special(number: int, text: str) -> dict[str, object]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": number, "content": text, **flags}


def _tokenizer() -> dict[str, object]:
    # No regular expression and no merges: the id of a token is the value of its byte.
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    names = {symbol: value for value, symbol in enumerate(_symbols())}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(BOS, "<bos>"), _special(EOS, "<eos>")],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {**names, "<bos>": BOS, "<eos>": EOS},
            "merges": [],
        },
    }


def write_shape(folder: Path) -> None:
    """Write config.json, generation_config.json and the tokenizer's files into `folder`."""
    special = {"bos_token": "<bos>", "eos_token": "<eos>"}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONFIG["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        **special,
    }
    files: dict[str, object] = {
        "config.json": CONFIG,
        "generation_config.json": {"bos_token_id": BOS, "eos_token_id": EOS, "do_sample": False},
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": settings,
        "special_tokens_map.json": special,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
