"""GLM-4.5 and its successors of the same architecture."""

from afd_models.spec import MoE

MODEL = MoE(
    arch="Glm4MoeForCausalLM",
    module="vllm.model_executor.models.glm4_moe",
    attention=("Glm4MoeAttention",),
    experts="FusedMoEFactory",
    dense=("Glm4MoeMLP",),
    block="Glm4MoE",
    vllm=">=0.30,<0.34",
)
