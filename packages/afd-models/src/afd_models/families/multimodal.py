"""Multimodal wrappers of declared text models: refused by name, since only their text models are carried."""

from afd_models.spec import Refused

_REASON = "it is a multimodal wrapper, and neither role's part of its encoder and of its inputs is settled"

REFUSED = tuple(
    Refused((arch,), f"vllm.model_executor.models.{file}", _REASON, f"serve a text-only checkpoint, {text}, instead")
    for arch, file, text in (
        ("Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe", "Qwen3MoeForCausalLM"),
        ("Qwen3OmniMoeForConditionalGeneration", "qwen3_omni_moe_thinker", "Qwen3MoeForCausalLM"),
        ("Qwen3_5MoeForConditionalGeneration", "qwen3_5", "Qwen3_5MoeForCausalLM"),
        ("Llama4ForConditionalGeneration", "mllama4", "Llama4ForCausalLM"),
        ("Glm4vMoeForConditionalGeneration", "glm4_1v", "Glm4MoeForCausalLM"),
        ("KimiVLForConditionalGeneration", "kimi_vl", "DeepseekV3ForCausalLM"),
        ("KimiK25ForConditionalGeneration", "kimi_k25", "DeepseekV3ForCausalLM"),
    )
)
