"""Qwen2-MoE: a shared expert with a gate of its own."""

from afd_models.spec import MoE

MODEL = MoE(
    arch="Qwen2MoeForCausalLM",
    module="vllm.model_executor.models.qwen2_moe",
    attention=("Qwen2MoeAttention",),
    experts="FusedMoEFactory",
    dense=("Qwen2MoeMLP",),
    block="Qwen2MoeSparseMoeBlock",
    vllm=">=0.30,<0.34",
)
