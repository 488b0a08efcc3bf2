"""Milliseconds per decode step with dual-batch overlap beside the same without it and beside native graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from tools.gpu import setups
from tools.gpu.children import Child, Children

TOKENS, PROMPT = 8192, 16
CACHED = 27 * 576 * 2  # bytes that a token leaves in the cache: layers, latent and rotary elements, bytes of each
VARIANTS = ("native", "graph", "dbo", "measured")
HEAD = "rows  native graph  split graph  split graph+DBO  graph+DBO where it pays  DBO/graph  measured/graph  spread"
#: What vLLM's thresholds are set to where every captured size is to be split.
ALWAYS = {"dbo_decode_token_threshold": 2, "dbo_prefill_token_threshold": TOKENS * 2}


def start(children: Children, sizes: Sequence[int], prompt: int = PROMPT) -> dict[str, Child]:
    """Engines by variant, and the FFN roles as "NAME-ffn"; not ready yet. prompt: tokens per request, for the cache."""
    model = setups.lite(setups.logs("bench-step") / "lite")
    base = setups.common(
        model, device="cuda", rows=max(sizes), tokens=max(TOKENS, max(sizes) * PROMPT), length=max(2048, 2 * prompt),
        cache=max(6 << 30, max(sizes) * (prompt + 128) * CACHED),
        load_format="dummy",
    )  # fmt: skip
    graphs, eager = setups.graphs(base, sizes, native=False), setups.eager(base)
    found = {"native": children.start("native", setups.ENGINE, {"options": setups.graphs(base, sizes, native=True)}, 0)}
    for name, rule in (("graph", ""), ("dbo", "thresholds"), ("measured", "measured")):
        pair = (graphs, eager)
        if rule:
            pair = (setups.overlap(graphs, rule, **ALWAYS), setups.overlap(eager, rule, **ALWAYS))
        found[name], found[f"{name}-ffn"] = setups.split(children, name, *pair, "cuda")
    return found


def table(
    engines: Mapping[str, Child], sizes: Sequence[int], rounds: int, prompt: int = PROMPT
) -> list[dict[str, float]]:
    """One row per size, printed as it is there; the variants in turn, the median of the rounds.

    prompt: tokens of each request before the steps that are timed.
    """
    from tools.gpu.bench_step_gpu import step_ms

    print(HEAD, flush=True)
    found = []
    for rows in sizes:
        samples: dict[str, list[float]] = {name: [] for name in VARIANTS}
        for name in VARIANTS:
            step_ms(engines[name], rows, prompt)  # warm
        for _ in range(rounds):
            for name in VARIANTS:
                samples[name].append(step_ms(engines[name], rows, prompt))
        row = {name: median(values) for name, values in samples.items()} | {"rows": float(rows)}
        spread = max(max(values) - min(values) for values in samples.values())
        print(
            f"{rows:4} {row['native']:13.2f} {row['graph']:12.2f} {row['dbo']:16.2f} {row['measured']:24.2f}"
            f" {row['dbo'] / row['graph']:10.3f} {row['measured'] / row['graph']:15.3f} {spread:7.2f}",
            flush=True,
        )
        found.append(row)
    for name in ("graph-ffn", "dbo-ffn", "measured-ffn"):
        told = engines[name].ask({"op": "figures"}, 60.0)
        print(f"{name}: {', '.join(f'{key} {value:.6g}' for key, value in told.items())}", flush=True)
    print("the rule's sentence: " + (engines["measured"].line_with("timed dual-batch overlap;") or "none"), flush=True)
    return found
