"""Trains the demo model on one CPU thread, so that the same machine gives the same weights again."""

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

from demo_model.corpus import documents
from demo_model.shape import BOS, CONFIG, EOS, EXPERTS_PER_TOKEN


@dataclass(frozen=True, slots=True)
class Recipe:
    """What decides the weights, besides the text: counts of steps and tokens, rates, the seed."""

    steps: int
    seed: int = 20
    step_tokens: int = 1024
    window: int = 128
    long_window: int = 256
    long_share: float = 0.3
    peak_rate: float = 3e-3
    final_rate: float = 1e-4
    warmup_steps: int = 100
    weight_decay: float = 0.1
    balance: float = 0.01

    def rate(self, step: int) -> float:
        """Learning rate of `step`: a linear rise, then half a cosine down to `final_rate`."""
        if step < self.warmup_steps:
            return self.peak_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.final_rate + (self.peak_rate - self.final_rate) * (1 + math.cos(math.pi * done)) / 2

    def window_at(self, step: int) -> int:
        """Bytes per training window: short ones first, since attention over long ones costs more."""
        return self.long_window if step >= self.steps * (1 - self.long_share) else self.window


class RouterLoad:
    """Collects router logits of a forward pass, so that the loss can keep all experts in use."""

    def __init__(self, model: nn.Module) -> None:
        self._logits: list[Tensor] = []
        for name, module in model.named_modules():
            if name.endswith("mlp.gate"):
                module.register_forward_hook(self._keep)

    def _keep(self, _module: nn.Module, _args: object, output: tuple[Tensor, Tensor, Tensor]) -> None:
        self._logits.append(output[0])

    def imbalance(self) -> Tensor:
        """Scalar, 1.0 when every expert gets equal shares; forgets the pass it was computed from."""
        terms = []
        for logits in self._logits:
            shares = logits.softmax(-1)
            top = shares.topk(EXPERTS_PER_TOKEN, -1).indices
            chosen = torch.zeros_like(shares).scatter_(1, top, 1.0 / EXPERTS_PER_TOKEN)
            terms.append(shares.shape[-1] * (chosen.mean(0) * shares.mean(0)).sum())
        self._logits.clear()
        return torch.stack(terms).mean()


def _stream() -> Tensor:
    """All documents as one row of token ids, int64, each between its two marks."""
    return torch.tensor([token for text in documents() for token in (BOS, *text, EOS)])


def _optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    scales = [p for p in model.parameters() if p.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": scales, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.peak_rate, betas=(0.9, 0.95), foreach=True)


def train(recipe: Recipe) -> tuple[DeepseekV2ForCausalLM, float]:
    """Return the float32 model and its mean loss over the last 50 steps, in nats per byte."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(recipe.seed)
    model = DeepseekV2ForCausalLM(DeepseekV2Config.from_dict(dict(CONFIG))).train()
    load = RouterLoad(model)
    optimizer = _optimizer(model, recipe)
    stream = _stream()
    draw = torch.Generator().manual_seed(recipe.seed)
    losses: list[float] = []
    begun = time.monotonic()
    for step in range(recipe.steps):
        window = recipe.window_at(step)
        starts = torch.randint(len(stream) - window, (recipe.step_tokens // window, 1), generator=draw)
        tokens = stream[starts + torch.arange(window + 1)]
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(step)
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        torch.autograd.backward(loss + recipe.balance * load.imbalance())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 50 == 49:
            recent = sum(losses[-50:]) / 50
            spent = time.monotonic() - begun
            print(f"step {step + 1}/{recipe.steps} loss {recent:.3f} after {spent:.0f} s", flush=True)
    last = losses[-50:]
    return model.eval(), sum(last) / len(last)
