"""Qwen3-MoE."""

from afd_models.spec import MoE

MODEL = MoE(
    arch="Qwen3MoeForCausalLM",
    module="vllm.model_executor.models.qwen3_moe",
    attention=("Qwen3MoeAttention",),
    experts="FusedMoEFactory",
    dense=("Qwen3MoeMLP",),
    overlap=("gate", "shared_expert_gate"),
    vllm=">=0.30,<0.34",
)
