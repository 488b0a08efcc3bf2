"""What the arithmetic needs to know of a model, from its config.json alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from afd_models.numbers import Config

#: Names that families give to the number of experts that a token takes.
_TAKEN: Final = ("num_experts_per_tok", "experts_per_token", "moe_k")
_PRODUCT: Final = 2  # operations per weight and token: one product, one sum


@dataclass(frozen=True, slots=True)
class Role:
    """One rank's part of a role. weights: bytes that it holds; read: bytes that every step reads of them.

    expert_bytes: further bytes that a step reads if it touches all experts. flops: operations per token.
    """

    weights: float
    read: float
    expert_bytes: float
    flops: float


@dataclass(frozen=True, slots=True)
class Model:
    """layers: exchanges per step. row: bytes of one row, one way. kv: bytes per token of context on one attention rank.

    experts, taken: per layer, and of them by each token. context_flops: operations of one token per token of its
    context. latent: whether the cache holds latents. whole: bytes of all weights on one native rank.
    """

    layers: int
    row: float
    kv: float
    experts: int
    taken: int
    context_flops: float
    latent: bool
    whole: float
    attention: Role
    ffn: Role

    def touched(self, rows: float) -> float:
        """The part of the experts that `rows` tokens need where each takes any with the same chance; 0 to 1."""
        return 1.0 - float((1.0 - self.taken / self.experts) ** rows)

    @property
    def dimensions(self) -> Mapping[str, int]:
        """By which one model's times are told from another's; of a model that is not spread."""
        return {
            "exchanges": self.layers,
            "row_bytes": round(self.row),
            "experts": self.experts,
            "experts_per_token": self.taken,
            "kv_bytes_per_token": round(self.kv),
            "weight_bytes": round(self.whole),
        }

    @classmethod
    def of(cls, config: Config, *, attention_tp: int = 1, ffn_ep: int = 1, dp: int = 1) -> Model:
        """ValueError names what config.json lacks.

        ffn_ep: devices of one FFN server, see Deployment.ep. dp: devices of native expert parallelism, each with the
        whole model but the experts. Sizes are those of `afd size`, which are compared with what vLLM allocates.
        """
        from afd_models.memory import Split, sizes
        from afd_models.numbers import head_width, heads, layer_count, number
        from afd_models.pieces import pieces

        split = Split(attention_tp, ffn_ep, expert_parallel=ffn_ep * dp > 1, data_parallel=dp)
        found = sizes(config, split)
        parts: dict[str, float] = {}
        for piece in pieces(config):
            if not piece.copy:
                parts[piece.part] = parts.get(piece.part, 0.0) + piece.elements
        if "experts" not in parts:
            raise ValueError("Expected a model with layers of experts in config.json, found none: plan another model.")
        experts = number(config, "n_routed_experts", "num_experts", "moe_num_experts", "num_local_experts")
        taken = min(experts, number(config, *_TAKEN))
        element = found.exchanged_per_token / (2 * found.exchanges * number(config, "hidden_size"))
        looked_up = parts.get("embedding", 0.0) / 2 * element / attention_tp  # of embeddings, not of the LM head
        ffn = _PRODUCT * (parts["experts"] * taken / experts + parts.get("shared", 0) + parts.get("dense", 0))
        latent = config.get("kv_lora_rank") is not None
        wide = number(config, "kv_lora_rank") if latent else head_width(config)
        return cls(
            layers=found.exchanges,
            row=number(config, "hidden_size") * element,
            kv=float(found.kv_per_token),
            experts=experts,
            taken=taken,
            # scores and values: one product and one sum each
            context_flops=2.0 * _PRODUCT * layer_count(config) * heads(config) * wide / attention_tp,
            latent=latent,
            whole=found.whole,
            attention=Role(found.attention, max(0.0, found.attention - looked_up), 0.0,
                           _PRODUCT * parts["attention"] / attention_tp),
            ffn=Role(found.ffn, found.ffn - found.experts, found.experts, ffn),
        )  # fmt: skip
