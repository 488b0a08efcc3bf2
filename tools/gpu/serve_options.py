"""The command line of `bench_serve_gpu`: a load with a name, or each of its numbers."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from tools.gpu import setups
from tools.gpu.serve_parts import Part, read_part
from tools.gpu.shapes import SHAPES
from tools.options import positive

BENCH_S = 150.0


def read(description: str | None) -> argparse.Namespace:
    """What was given, over what --shape says, over what is usual."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), help="a load with a name, whose parts other options change")
    parser.add_argument("--model", choices=tuple(setups.DIMENSIONS), default="v2-lite")
    parser.add_argument("--input", type=positive, default=256, help="tokens of each prompt")
    parser.add_argument("--output", type=positive, default=256, help="tokens that each request is given")
    parser.add_argument("--concurrency", nargs="+", type=positive, default=[64, 128, 256, 512])
    parser.add_argument(
        "--parts", nargs="+", type=read_part, default=[Part.parse(p) for p in ("native1,2", "1A1F", "dp2ep")]
    )
    parser.add_argument("--waves", type=positive, default=2, help="requests per one that runs at once")
    parser.add_argument("--limit", type=float, default=520.0, help="seconds for everything")
    parser.add_argument("--bench", type=float, default=BENCH_S, help="seconds for one size")
    parser.add_argument("--kv-gib", type=float, help="size of every KV cache; without it vLLM measures what is free")
    parser.add_argument("--utilization", type=float, default=0.85, help="of each device's memory")
    parser.add_argument("--max-rows", type=positive, default=512, help="requests that an engine runs at once")
    parser.add_argument(
        "--stream-interval", type=positive, default=1, help="tokens per message of every server's stream"
    )
    parser.add_argument("--times", type=Path, help="measured steps for the planner")
    parser.add_argument("--traces", action="store_true", help="also profiler traces of each part at its largest size")
    setups.connector_option(parser)
    parser.set_defaults(**_shape(parser))
    return parser.parse_args()


def _shape(parser: argparse.ArgumentParser) -> dict[str, object]:
    """What the shape that was asked for changes of the options' defaults."""
    name = parser.parse_known_args()[0].shape
    if name is None:
        return {}
    found = asdict(SHAPES[name])
    return {**found, "input": found["prompt"], "parts": [Part.parse(part) for part in SHAPES[name].parts]}
