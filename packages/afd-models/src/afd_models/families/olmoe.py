"""OLMoE."""

from afd_models.spec import MoE

MODEL = MoE(
    arch="OlmoeForCausalLM",
    module="vllm.model_executor.models.olmoe",
    attention=("OlmoeAttention",),
    experts="FusedMoEFactory",
    dense=(),
    block="OlmoeMoE",
    vllm=">=0.30,<0.34",
)
