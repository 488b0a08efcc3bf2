"""DeepSeek MoE, the first: usual attention, shared experts; transformers has no name for it, so it brings its own."""

from tools.toy_checkpoint.families.deepseek import feed_forward
from tools.toy_checkpoint.parts import BASE, Config, Shapes, Toy, decoder, gqa, number

#: What vLLM needs of a checkpoint's own code; published ones state a default for each key too.
_CODE = '''\
"""The configuration of DeepSeek MoE, which transformers does not have."""

from transformers import PretrainedConfig


class DeepseekConfig(PretrainedConfig):
    """Everything that config.json says, under the name that vLLM asks for."""

    model_type = "deepseek"
'''


def _shapes(config: Config) -> Shapes:
    width = number(config, "hidden_size") // number(config, "num_attention_heads")

    def layer(index: int, name: str) -> Shapes:
        yield from gqa({**config, "head_dim": width}, name)
        yield from feed_forward(config, index, name)

    return decoder(config, layer)


TOYS = {
    "deepseek-v1": Toy(
        {
            **BASE,
            "architectures": ["DeepseekForCausalLM"],
            "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekConfig"},
            "model_type": "deepseek",
            "num_key_value_heads": 4,
            "n_routed_experts": 8,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "norm_topk_prob": False,
            "scoring_func": "softmax",
        },
        _shapes,
        files={"configuration_deepseek.py": _CODE},
    )
}
