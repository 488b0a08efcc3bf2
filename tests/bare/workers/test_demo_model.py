"""The committed demo model is complete, small, of the right shape, and the one its README describes."""

import hashlib
import json
import re
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[3] / "packages/afd-workers/src/afd_workers/demo"
MODEL = DEMO / "model"
FILES = (
    "README.md",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
WANTED = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "torch_dtype": "bfloat16",
    "vocab_size": 258,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": None,
    "rope_scaling": None,
    "max_position_embeddings": 2048,
}


def _read(name: str) -> dict[str, object]:
    content = json.loads((MODEL / name).read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def _header() -> dict[str, dict[str, object]]:
    """The safetensors header, read by its published layout: 8 bytes of length, then JSON."""
    raw = (MODEL / "model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert isinstance(header, dict)
    return header


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_there(name: str) -> None:
    assert (MODEL / name).stat().st_size > 0


def test_folder_is_at_most_8_mb() -> None:
    assert sum(file.stat().st_size for file in MODEL.iterdir()) <= 8_000_000


@pytest.mark.parametrize("key", WANTED)
def test_config(key: str) -> None:
    assert _read("config.json")[key] == WANTED[key]


def test_there_are_dense_and_sparse_layers() -> None:
    layers = _read("config.json")["num_hidden_layers"]
    assert isinstance(layers, int)
    assert layers >= 3
    names = _header()
    assert "model.layers.0.mlp.gate_proj.weight" in names
    for layer in range(1, layers):
        experts = {name for name in names if name.startswith(f"model.layers.{layer}.mlp.experts.")}
        assert len(experts) == 8 * 3


def test_weights_are_bfloat16() -> None:
    kinds = {entry["dtype"] for name, entry in _header().items() if name != "__metadata__"}
    assert kinds == {"BF16"}


def test_readme_names_these_weights() -> None:
    text = (MODEL / "README.md").read_text(encoding="utf-8")
    named = re.search(r"SHA-256 of `model\.safetensors` \| `([0-9a-f]{64})`", text)
    assert named is not None
    assert named[1] == hashlib.sha256((MODEL / "model.safetensors").read_bytes()).hexdigest()


def test_tokens_are_bytes() -> None:
    tokenizer = _read("tokenizer.json")
    model = tokenizer["model"]
    assert isinstance(model, dict)
    assert model["merges"] == []
    vocab = model["vocab"]
    assert sorted(vocab.values()) == list(range(258))
    assert all(vocab[chr(value)] == value for value in range(33, 127))
    assert (vocab["\u0120"], vocab["\u010a"]) == (32, 10)
    assert (vocab["<bos>"], vocab["<eos>"]) == (256, 257)


def test_prompts_fit_the_windows_the_model_was_trained_on() -> None:
    prompts = json.loads((DEMO / "prompts.json").read_text(encoding="utf-8"))
    assert len(prompts) == 4
    assert all(isinstance(prompt, str) and prompt.isascii() and 0 < len(prompt) <= 192 for prompt in prompts)
