"""DeepSeek MoE, the first, in plain torch and from nothing but its description, since transformers does not have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention, silu


@dataclass(frozen=True, slots=True)
class Model:
    """A checkpoint as stored, computed in one dtype: one sequence, without a cache."""

    folder: Path
    config: Mapping[str, int]
    dtype: torch.dtype

    @torch.inference_mode()
    def __call__(self, tokens: Tensor) -> Tensor:
        """tokens: [positions] -> logits [positions, vocabulary]."""
        weights = {name: each.to(self.dtype) for name, each in load_file(self.folder / "model.safetensors").items()}
        hidden = weights["model.embed_tokens.weight"][tokens]
        for index in range(self.config["num_hidden_layers"]):
            layer = _Part(weights, f"model.layers.{index}")
            hidden = hidden + self._attention(layer / "self_attn", self._norm(layer / "input_layernorm", hidden))
            rows = self._norm(layer / "post_attention_layernorm", hidden)
            dense = index < self.config["first_k_dense_replace"]
            hidden = hidden + (_mlp(layer / "mlp", rows) if dense else self._experts(layer / "mlp", rows))
        return linear(self._norm(_Part(weights, "model.norm"), hidden), weights["lm_head.weight"])

    def _norm(self, part: _Part, rows: Tensor) -> Tensor:
        wide = rows.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return part["weight"] * (wide * scale).to(rows.dtype)

    def _attention(self, part: _Part, rows: Tensor) -> Tensor:
        heads = self.config["num_attention_heads"]
        query, key, value = (
            linear(rows, part[f"{name}_proj.weight"]).unflatten(-1, (heads, -1)).transpose(0, 1) for name in "qkv"
        )
        query, key = self._turned(query), self._turned(key)
        return linear(scaled_dot_product_attention(query, key, value, is_causal=True).transpose(0, 1).flatten(1),
                      part["o_proj.weight"])  # fmt: skip

    def _turned(self, rows: Tensor) -> Tensor:
        """[heads, positions, width], each pair of (i, i + width / 2) turned by its position."""
        half = rows.shape[-1] // 2
        speed = self.config["rope_theta"] ** (-torch.arange(half).float() / half)
        angle = torch.arange(rows.shape[1]).float()[:, None] * speed
        cosine, sine = angle.cos().to(rows.dtype), angle.sin().to(rows.dtype)
        one, other = rows[..., :half], rows[..., half:]
        return torch.cat((one * cosine - other * sine, other * cosine + one * sine), -1)

    def _experts(self, part: _Part, rows: Tensor) -> Tensor:
        """Shared experts for every row, and of the others its best by softmax, weighted with what that gave them."""
        chances = linear(rows, part["gate.weight"]).float().softmax(-1)
        weight, chosen = chances.topk(self.config["num_experts_per_tok"], dim=-1)
        found = torch.zeros_like(rows)
        for expert in range(self.config["n_routed_experts"]):
            row, place = (chosen == expert).nonzero(as_tuple=True)
            answer = _mlp(part / f"experts.{expert}", rows[row]) * weight[row, place, None]
            found.index_add_(0, row, answer.to(rows.dtype))
        return found + _mlp(part / "shared_experts", rows)


@dataclass(frozen=True, slots=True)
class _Part:
    """Weights below a path."""

    weights: Mapping[str, Tensor]
    path: str

    def __getitem__(self, name: str) -> Tensor:
        return self.weights[f"{self.path}.{name}"]

    def __truediv__(self, name: str) -> _Part:
        return _Part(self.weights, f"{self.path}.{name}")


def _mlp(part: _Part, rows: Tensor) -> Tensor:
    gated = silu(linear(rows, part["gate_proj.weight"])) * linear(rows, part["up_proj.weight"])
    return linear(gated, part["down_proj.weight"])
