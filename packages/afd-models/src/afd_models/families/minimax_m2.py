"""MiniMax-M2."""

from afd_models.spec import MoE

MODEL = MoE(
    arch="MiniMaxM2ForCausalLM",
    module="vllm.model_executor.models.minimax_m2",
    attention=("MiniMaxM2Attention",),
    experts="FusedMoEFactory",
    dense=(),
    block="MiniMaxM2MoE",
    vllm=">=0.30,<0.34",
    ffn="block_sparse_moe",
)
