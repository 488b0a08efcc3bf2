"""DeepSeek V4 and V4.1: their experts are called with token ids too, which do not travel in an exchange."""

from afd_models.spec import Refused

_INSTEAD = "serve it without AFD, or serve DeepSeek-V3"

REFUSED = (
    Refused(
        archs=("DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration"),
        module="vllm.models.deepseek_v4",
        reason="its first layers choose experts by token id, and an exchange carries hidden states only",
        instead=_INSTEAD,
    ),
    Refused(
        archs=("DeepseekV41ForCausalLM",),
        module="vllm.models.deepseek_v41",
        reason="its experts are called with token ids beside hidden states, and an exchange carries hidden states only",
        instead=_INSTEAD,
    ),
)
