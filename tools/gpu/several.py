"""Two attention ranks on one FFN rank: their tokens beside native vLLM's, and what the FFN rank's larger batch costs.

    python -m tools.gpu.several [--rows 64] [--rounds 3] [--connector NAME]

Both attention ranks share the first device, the FFN rank has the second. Rows of both in one computation take other
kernels than either's alone, so tokens of the two at once are compared and not demanded; those of one at a time are.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from statistics import median

from tools.gpu import setups
from tools.gpu.bench_step_gpu import LONG, PROMPT, SHORT
from tools.gpu.children import Child, Children, Failed
from tools.gpu.parity import SIZES, ask, compare, prompts
from tools.options import positive

ANSWER_S = 120.0
RANKS = 2
TOKENS = 64
BAR = 1.1


def start(children: Children, name: str, options: setups.Options, sizes: Sequence[int]) -> tuple[list[Child], Child]:
    """(attention ranks, their FFN rank) with graphs, not ready yet."""
    port, more = setups.free_port(), {"num_attention_ranks": RANKS}
    ffn = setups.role(setups.eager(options), "ffn", port, **more)
    other = children.start(f"{name}-ffn", setups.ENGINE, {"options": ffn}, 1)
    captured = setups.graphs(options, sizes, native=False)
    ranks = [
        children.start(
            f"{name}-attention-{rank}",
            setups.ENGINE,
            {"options": setups.role(captured, "attention", port, rank=rank, **more)},
            0,
        )
        for rank in range(RANKS)
    ]
    return ranks, other


def together(ranks: Sequence[Child], job: dict[str, object]) -> list[dict[str, object]]:
    """The same job on all ranks at once."""
    for child in ranks:
        child.begin(job)
    return [child.answer(ANSWER_S) for child in ranks]


def parity(native: Child, ranks: Sequence[Child], ffn: Child) -> bool:
    """Whether each rank alone gives native tokens, and both at once were served together."""
    given = prompts(16)
    expected = {"16 batched": ask(native, given, TOKENS)}
    right = True
    for rank, child in enumerate(ranks):
        right = compare(f"rank {rank} alone / native", expected, {"16 batched": ask(child, given, TOKENS)}) and right
    found = together(ranks, {"op": "tokens", "prompts": given, "count": TOKENS})
    for rank, answer in enumerate(found):
        compare(f"rank {rank} beside the other / native", expected, {"16 batched": answer["tokens"]})  # type: ignore[dict-item]
    told = ffn.ask({"op": "figures"}, ANSWER_S)
    print(f"  FFN steps: {', '.join(f'{key} {value:.6g}' for key, value in told.items())}", flush=True)
    return right and told["missing"] == 0 and float(str(told["composed"])) > 0


def step_ms(ranks: Sequence[Child], rows: int) -> float:
    """Milliseconds per decode step of all `ranks` at once."""
    spent = []
    for count in (LONG, SHORT):
        started = time.perf_counter()
        together(ranks, {"op": "time", "rows": rows, "count": count, "prompt": PROMPT})
        spent.append(time.perf_counter() - started)
    return 1e3 * (spent[0] - spent[1]) / (LONG - SHORT)


def speed(ranks: Sequence[Child], ffn: Child, rows: int, rounds: int) -> bool:
    """Prints the FFN rank's time for one and for two ranks' rows, and steps of one rank and of both at once."""
    own, both = (float(str(ffn.ask({"op": "alone", "rows": n * rows}, ANSWER_S)["ms"])) for n in (1, RANKS))
    for group in (ranks[:1], ranks):
        step_ms(group, rows)  # warm: the graphs of steps that met are captured now
    before = ffn.ask({"op": "figures"}, ANSWER_S)
    alone = median(step_ms(ranks[:1], rows) for _ in range(rounds))
    middle = ffn.ask({"op": "figures"}, ANSWER_S)
    shared = median(step_ms(ranks, rows) for _ in range(rounds))
    after = ffn.ask({"op": "figures"}, ANSWER_S)

    def steps(one: dict[str, object], other: dict[str, object]) -> float:
        return sum(float(str(other[key])) - float(str(one[key])) for key in ("eager", "replayed"))

    print(f"FFN layers alone: {rows} rows {own:.2f} ms, {RANKS} x {rows} rows {both:.2f} ms, ratio {both / own:.3f}")
    print(f"step: one rank {alone:.2f} ms, both at once {shared:.2f} ms each (attention shares one device)")
    print(f"FFN steps: {steps(before, middle):.0f} for one rank, {steps(middle, after):.0f} for both", flush=True)
    return both / own <= BAR


def main() -> None:
    """Exit code 0 when tokens are right and the bar is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=positive, default=64)
    parser.add_argument("--rounds", type=positive, default=3)
    setups.connector_option(parser)
    given = parser.parse_args()
    folder = setups.logs("several")
    toy = setups.common(
        setups.toy(folder / "toy", "cuda"), device="cuda", rows=128, tokens=4096, length=1024, cache=2 << 30
    )
    large = setups.common(
        setups.lite(folder / "lite"), device="cuda", rows=given.rows, tokens=4096, length=2048, cache=4 << 30,
        load_format="dummy",
    )  # fmt: skip
    right = False
    try:
        with Children(folder) as children:
            native = children.start("native", setups.ENGINE, {"options": setups.graphs(toy, SIZES, native=True)}, 0)
            small = start(children, "toy", toy, SIZES)
            lite = start(children, "lite", large, (given.rows,))
            children.ready(setups.READY_S)
            right = parity(native, *small)
            right = speed(*lite, given.rows, given.rounds) and right
    except Failed as error:
        print(f"FAILED: {error}", flush=True)
    print(f"several attention ranks: {'as promised' if right else 'NOT as promised'}", flush=True)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
