"""gpt-oss: its block calls its gate itself, and its layer takes both classes from its own body."""

from afd_models.spec import MoE

MODEL = MoE(
    arch="GptOssForCausalLM",
    module="vllm.model_executor.models.gpt_oss",
    attention=("TransformerBlock.attention_cls",),
    experts="FusedMoEFactory",
    block="TransformerBlock.mlp_cls",
    dense=(),
    vllm=">=0.30,<0.34",
)
