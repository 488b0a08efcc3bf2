"""What rows as fp8 on the wire do to greedy tokens and logits, beside the same split with rows as they are: a report.

    python -m tools.gpu.parity_fp8 [--dbo]

64 prompts of 32 tokens, 128 tokens each, a random toy checkpoint, graphs on both roles, over nvlink. The prompts travel
as fp8, all 2048 rows together; the messages of decode steps are too small for it here, see PACKED_LEAST. --dbo: 128
prompts in two stages of 2048 rows, dual-batch overlap in every step.
"""

from __future__ import annotations

import argparse
import sys

from tools.gpu import agreement, setups
from tools.gpu.children import Children, Failed
from tools.gpu.parity import SIZES

NVLINK = {"connector": "nvlink"}
FP8 = {**NVLINK, "connector_extra_config": {"wire_dtype": "fp8"}}
EVERY_STEP = {"dbo_decode_token_threshold": 2, "dbo_prefill_token_threshold": 2}


def report(dbo: bool) -> None:
    """Starts both splits and prints how far they agree."""
    folder = setups.logs("parity-fp8-dbo" if dbo else "parity-fp8")
    model = setups.toy(folder / "toy", "cuda")
    base = setups.common(
        model, device="cuda", rows=128, tokens=8192, length=1024, cache=2 << 30, logprobs_mode="raw_logits"
    )  # fmt: skip
    attention, ffn = setups.graphs(base, SIZES, native=False), setups.eager(base)
    if dbo:
        attention, ffn = (setups.overlap(each, "thresholds", **EVERY_STEP) for each in (attention, ffn))
    given = [[2 + (n * 37 + place * place * 11) % 300 for place in range(32)] for n in range(128 if dbo else 64)]
    with Children(folder) as children:
        plain, _ = setups.split(children, "model", attention, ffn, "cuda", **NVLINK)
        packed, _ = setups.split(children, "fp8", attention, ffn, "cuda", **FP8)
        children.ready(setups.READY_S)
        expected, again = (agreement.ask(plain, given, 128) for _ in range(2))
        found, twice = (agreement.ask(packed, given, 128) for _ in range(2))
    print(agreement.line("split / itself", expected, again), flush=True)
    print(agreement.line("split with fp8 on the wire / split", expected, found), flush=True)
    print(agreement.line("split with fp8 on the wire / itself", found, twice), flush=True)


def main() -> None:
    """Exit code 0 when there was something to report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dbo", action="store_true", help="two stages in every step")
    given = parser.parse_args()
    try:
        report(given.dbo)
    except Failed as error:
        print(f"FAILED: {error}", flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
