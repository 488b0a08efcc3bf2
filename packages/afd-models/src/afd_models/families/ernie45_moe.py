"""ERNIE 4.5 MoE (text)."""

from afd_models.spec import MoE

MODEL = MoE(
    arch="Ernie4_5_MoeForCausalLM",
    module="vllm.model_executor.models.ernie45_moe",
    attention=("Ernie4_5_MoeAttention",),
    experts="FusedMoEFactory",
    dense=("Ernie4_5_MoeMLP",),
    block="Ernie4_5_MoeMoE",
    vllm=">=0.30,<0.34",
)
