"""Hy3: its block calls its gate, which is in float32, itself."""

from afd_models.spec import MoE

MODEL = MoE(
    arch="HYV3ForCausalLM",
    module="vllm.model_executor.models.hy_v3",
    attention=("HYV3Attention",),
    experts="FusedMoEFactory",
    dense=("HYV3FeedForward",),
    vllm=">=0.30,<0.34",
    block="HYV3MoEFused",
)
