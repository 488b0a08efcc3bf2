"""Granite 3 MoE."""

from afd_models.spec import MoE

MODEL = MoE(
    arch="GraniteMoeForCausalLM",
    module="vllm.model_executor.models.granitemoe",
    attention=("GraniteMoeAttention",),
    experts="FusedMoEFactory",
    dense=(),
    block="GraniteMoeMoE",
    vllm=">=0.30,<0.34",
    ffn="block_sparse_moe",
)
