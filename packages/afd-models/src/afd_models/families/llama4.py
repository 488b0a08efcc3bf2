"""Llama-4, text only: its block calls its gate itself; norms, embeddings and the LM head are built by Llama's file."""

from afd_models.spec import MoE

MODEL = MoE(
    arch="Llama4ForCausalLM",
    module="vllm.model_executor.models.llama4",
    also=("vllm.model_executor.models.llama",),
    attention=("Llama4Attention",),
    experts="FusedMoEFactory",
    block="Llama4MoE",
    dense=("LlamaMLP",),
    ffn="feed_forward",
    vllm=">=0.30,<0.34",
)
