"""Mixtral: every layer has experts, named w1, w2 and w3."""

from tools.toy_checkpoint.parts import BASE, Config, Shapes, Toy, decoder, gqa, number


def numbered(path: str, count: int, width: int, hidden: int) -> Shapes:
    """A gate and its experts under Mixtral's names."""
    yield f"{path}.gate.weight", (count, hidden)
    for expert in range(count):
        yield f"{path}.experts.{expert}.w1.weight", (width, hidden)
        yield f"{path}.experts.{expert}.w2.weight", (hidden, width)
        yield f"{path}.experts.{expert}.w3.weight", (width, hidden)


def _shapes(config: Config) -> Shapes:
    count, width, hidden = (number(config, k) for k in ("num_local_experts", "intermediate_size", "hidden_size"))

    def layer(_index: int, name: str) -> Shapes:
        yield from gqa(config, name)
        yield from numbered(f"{name}.block_sparse_moe", count, width, hidden)

    return decoder(config, layer)


TOYS = {
    "mixtral": Toy(
        {
            **BASE,
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "num_key_value_heads": 2,
            "head_dim": 32,
            "num_local_experts": 8,
            "intermediate_size": 64,
            "sliding_window": None,
        },
        _shapes,
    )
}
