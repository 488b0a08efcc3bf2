"""DeepSeek V3.2 and GLM-5: sparse attention by an indexer, whose layers leave sums to the next layer's norm."""

from afd_models.spec import Refused

REFUSED = (
    Refused(
        archs=("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"),
        module="vllm.models.deepseek_v32",
        reason="on CUDA its FFN leaves the sum over tensor-parallel ranks to the next layer's norm, which is on the "
        "other role, and on CPU vLLM has no sparse attention to prove the cut with",
        instead="serve it without AFD, or serve DeepSeek-V3",
    ),
)
