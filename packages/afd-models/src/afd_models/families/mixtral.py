"""Mixtral: every layer has experts, none is shared."""

from afd_models.spec import MoE

MODEL = MoE(
    arch="MixtralForCausalLM",
    module="vllm.model_executor.models.mixtral",
    attention=("MixtralAttention",),
    experts="FusedMoEFactory",
    dense=(),
    block="MixtralMoE",
    vllm=">=0.30,<0.34",
    ffn="block_sparse_moe",
)
