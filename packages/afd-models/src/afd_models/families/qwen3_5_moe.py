"""The text model of Qwen3.5-MoE: layers of its own, blocks of Qwen3-Next's file."""

from afd_models.spec import COMMON_UNUSED, MoE

MODEL = MoE(
    arch="Qwen3_5MoeForCausalLM",
    module="vllm.model_executor.models.qwen3_5",
    also=("vllm.model_executor.models.qwen3_next",),
    attention=("Qwen3NextAttention", "QwenGatedDeltaNetAttention"),
    experts="FusedMoEFactory",
    dense=("Qwen3NextMLP",),
    unused=(*COMMON_UNUSED, "Qwen3_5RMSNorm", "Qwen3NextRMSNorm"),
    overlap=("gate", "shared_expert_gate"),
    needs=("torchvision",),  # its file defines the multimodal wrapper too
    vllm=">=0.30,<0.34",
)
