"""DeepSeek MoE, V2 and V3: one vLLM file serves all three."""

from afd_models.spec import MoE

MODEL = MoE(
    arch="DeepseekV2ForCausalLM",
    aliases=("DeepseekForCausalLM", "DeepseekV3ForCausalLM"),
    module="vllm.model_executor.models.deepseek_v2",
    attention=("DeepseekAttention", "DeepseekV2Attention", "DeepseekV2MLAAttention"),
    experts="FusedMoEFactory",
    dense=("DeepseekV2MLP",),
    vllm=">=0.30,<0.34",
)
