"""Splits a two-layer MoE over two processes with torch and afd-connectors alone, and shows that split equals whole."""

import math
import multiprocessing
import socket

import torch
from torch import Tensor, nn

from afd_connectors import Facts, Layout, Mode, Settings, Shape, Step, resolve

HIDDEN, EXPERTS, LAYERS, TOKENS = 64, 4, 2, 8
SHAPE = Shape(TOKENS, HIDDEN, "float32", LAYERS)
FACTS = Facts("0.1.0", "none", "split_moe", "float32", HIDDEN, LAYERS, 0, "ffn", 1, (), num_attention=1, num_ffn=1)


def weights(layer: int, name: str, *size: int) -> Tensor:
    """Both processes make the same weights, as if they had read one checkpoint; each asks only for its own."""
    seed = layer * 100 + sum(name.encode())
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) / math.sqrt(size[-1])


def attention(layer: int, x: Tensor) -> Tensor:
    q, k, v = (x @ weights(layer, name, HIDDEN, HIDDEN) for name in "qkv")
    mixed: Tensor = nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    return x + mixed


def experts(layer: int, x: Tensor) -> Tensor:
    chosen = (x @ weights(layer, "gate", HIDDEN, EXPERTS)).softmax(-1).max(-1)
    up, down = weights(layer, "up", EXPERTS, HIDDEN, HIDDEN), weights(layer, "down", EXPERTS, HIDDEN, HIDDEN)
    rows = [(row @ up[e]).relu() @ down[e] for row, e in zip(x, chosen.indices, strict=True)]
    return torch.stack(rows) * chosen.values[:, None]


def ffn_role(settings: Settings) -> None:
    port = resolve("tcp", "cpu")(Layout("ffn", 0, 1, 1), SHAPE, FACTS, settings).open_ffn()
    while True:  # until the other process ends this one
        work = port.recv(wait_s=1.0)
        if work is not None:
            port.send(work, experts(work.layer, work.hidden))


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as free:
        settings = Settings(port=free.getsockname()[1], join_timeout_s=60)
    multiprocessing.get_context("spawn").Process(target=ffn_role, args=(settings,), daemon=True).start()
    port = resolve("tcp", "cpu")(Layout("attention", 0, 1, 1), SHAPE, FACTS, settings).open_attention()
    whole = split = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(0))
    step = Step(seq=1, mode=Mode.EAGER, tokens=(TOKENS,))
    port.begin(step)
    for layer in range(LAYERS):
        whole, split = attention(layer, whole), attention(layer, split)
        answer = torch.empty_like(split)
        port.send(step, layer, split)
        port.recv(step, layer, answer)
        whole, split = whole + experts(layer, whole), split + answer
    port.close()
    assert torch.equal(split, whole), (split - whole).abs().max()
    print(f"split equals whole: {LAYERS} layers of {EXPERTS} experts, {TOKENS} rows, sum {split.sum():.4f}")
