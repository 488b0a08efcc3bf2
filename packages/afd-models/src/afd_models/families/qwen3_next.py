"""Qwen3-Next: linear attention in most layers, norms under a name of their own, a gate of the shared expert."""

from afd_models.spec import COMMON_UNUSED, MoE

MODEL = MoE(
    arch="Qwen3NextForCausalLM",
    module="vllm.model_executor.models.qwen3_next",
    attention=("Qwen3NextAttention", "QwenGatedDeltaNetAttention"),
    experts="FusedMoEFactory",
    dense=("Qwen3NextMLP",),
    unused=(*COMMON_UNUSED, "Qwen3NextRMSNorm"),
    overlap=("gate", "shared_expert_gate"),
    vllm=">=0.30,<0.34",
)
