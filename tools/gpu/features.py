"""vLLM's features on GPUs: all answers of a split engine beside native vLLM's, on a toy checkpoint.

    python -m tools.gpu.features [--connector NAME] [--graphs | --device cpu]

The questions are those of `tests/vllm/workers/test_features.py` that need no engine of their own, asked with chunked
prefill, prefix caching, request priorities and async scheduling on. One line per question; exit code 1 when an answer
differs.
With `AFD_GPU_DEVICES=0,0` and `--connector nvlink` one device is enough. On CPU the script itself can be tried.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path

from tools import toy_checkpoint
from tools.asks import SAMPLING, Ask
from tools.gpu import setups
from tools.gpu.children import Child, Children, Failed

CHUNK, ROWS = 64, 8
CACHE = {"cpu": 64 << 20, "cuda": 256 << 20}
LIMIT_S = 90.0
ENGINE = "tools.gpu.asking"


def options(model: Path, device: str, *, graphs: bool, native: bool) -> setups.Options:
    """Of each engine."""
    common = setups.common(model, device=device, rows=ROWS, tokens=CHUNK, length=512, cache=CACHE[device])
    common |= {
        "enable_prefix_caching": True,
        "skip_tokenizer_init": False,
        "scheduling_policy": "priority",
        "async_scheduling": True,
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
    }
    return setups.graphs(common, [1, 2, 4, 8], native=native) if graphs else setups.eager(common)


def compared(native: Child, split: Child, ask: Ask) -> bool:
    """Whether both answer alike; prints a line."""
    job = {"op": "answer", "ask": asdict(ask)}
    other = split.ask(job, LIMIT_S)["answer"]
    if ask.kind == "rpc":  # refused with AFD; native vLLM would load weights anew
        right = str(other).startswith("ValueError: Expected the weights to stay")
        print(f"{ask.name:24} {'refused' if right else f'NOT refused: {str(other)[:200]}'}", flush=True)
        return right
    one = native.ask(job, LIMIT_S)["answer"]
    if isinstance(one, str):
        print(f"{ask.name:24} NOT ANSWERED natively either: {one[:200]}", flush=True)
        return False
    print(f"{ask.name:24} {'equal' if one == other else f'DIFFERS: {str(one)[:160]} / {str(other)[:160]}'}", flush=True)
    return one == other


def run(folder: Path, device: str, *, graphs: bool) -> bool:
    """Whether all answers are as they should be."""
    folder.mkdir(parents=True, exist_ok=True)
    model = toy_checkpoint.make("qwen3-moe", folder / "model")
    native, part = (options(model, device, graphs=graphs, native=each) for each in (True, False))
    first, second = (0, 1) if device == "cuda" else (None, None)
    started = time.monotonic()
    with Children(folder) as children:
        whole = children.start("native", ENGINE, {"options": native}, first)
        port = setups.free_port()
        children.start("ffn", ENGINE, {"options": setups.role(part, "ffn", port)}, second)
        attention = children.start("attention", ENGINE, {"options": setups.role(part, "attention", port)}, first)
        children.ready(setups.READY_S)
        print(f"ready in {time.monotonic() - started:.0f} s", flush=True)
        found = [compared(whole, attention, ask) for ask in SAMPLING]
    return all(found)


def main() -> None:
    """Prints the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    setups.connector_option(parser)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--graphs", action="store_true", help="decode from graphs instead of eagerly")
    kind.add_argument("--device", choices=tuple(CACHE), default="cuda")
    given = parser.parse_args()
    name = "features-graphs" if given.graphs else "features"
    try:
        right = run(setups.logs(name), given.device, graphs=given.graphs)
    except Failed as error:
        print(f"FAILED: {error}", flush=True)
        right = False
    print(f"features{' from graphs' if given.graphs else ''}: {'all equal' if right else 'NOT equal'}", flush=True)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
