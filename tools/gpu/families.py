"""Greedy tokens of toy checkpoints that a CPU cannot serve, native and split: further families and quantised experts.

    python -m tools.gpu.families [--connector NAME] [CASE ...]      a case is FAMILY or FAMILY:METHOD

Eager, one line per case. With `AFD_GPU_DEVICES=0,0` and `--connector nvlink` one device is enough. Exit code 1 when
tokens differ, when native serves what the split does not, and when native fails where it is not known to.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools import toy_checkpoint
from tools.gpu import setups
from tools.gpu.children import Child, Children, Failed
from tools.gpu.parity import ask, prompts

CASES = (
    "minimax-m2", "deepseek-v1", "glm4-moe",
    "gpt-oss", "gpt-oss:mxfp4", "qwen3-moe:fp8",
    "qwen3-moe:w8a8", "qwen3-moe:w4a16", "qwen3-next",
    "qwen3-moe:awq", "qwen3-moe:gptq",
)  # fmt: skip
#: Kernels for quantised weights want their sizes in whole blocks of 128; the attention of gpt-oss wants wider heads.
BLOCKS: Mapping[str, Mapping[str, object]] = {
    "qwen3-moe": {"moe_intermediate_size": 128, "head_dim": 32, "num_key_value_heads": 4},
    "gpt-oss": {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64},
}
#: What vLLM 0.30 itself does not load, seen on an H200.
NATIVE_FAILS = ("qwen3-moe:awq", "qwen3-moe:gptq")
TOKENS, READY_S, AT_ONCE = 32, 240.0, 3


@dataclass(frozen=True, slots=True)
class Engines:
    """Of one case, started and not ready yet."""

    case: str
    native: Child
    attention: Child
    ffn: Child


def start(children: Children, case: str, folder: Path) -> Engines:
    """All three engines of one case."""
    family, _, method = case.partition(":")
    name = case.replace(":", "-")
    changes = BLOCKS.get(family) if method or family == "gpt-oss" else None
    model = toy_checkpoint.make(family, folder / name, changes=changes, method=method or None)
    options = setups.eager(setups.common(model, device="cuda", rows=16, tokens=1024, length=512, cache=256 << 20))
    if toy_checkpoint.needs_trust(model):
        options["trust_remote_code"] = True
    native = children.start(f"{name}-native", setups.ENGINE, {"options": options}, 0)
    attention, ffn = setups.split(children, name, options, options, "cuda")
    return Engines(case, native, attention, ffn)


def compared(engines: Engines, until: float) -> tuple[str, bool]:
    """(what came of it, whether it is as it should be)."""
    try:
        engines.native.answer(max(1.0, until - time.monotonic()))
    except Failed as error:
        return f"native does not serve it: {_reason(str(error))}", engines.case in NATIVE_FAILS
    try:
        for child in (engines.ffn, engines.attention):
            child.answer(max(1.0, until - time.monotonic()))
        given = prompts(8)
        pairs = [
            (ask(engines.native, batch, TOKENS), ask(engines.attention, batch, TOKENS)) for batch in _batches(given)
        ]
    except Failed as error:
        return f"FAILED: {_reason(str(error))}", False
    whole = [tokens for native, _ in pairs for tokens in native]
    parts = [tokens for _, found in pairs for tokens in found]
    equal = sum(one == other for one, other in zip(whole, parts, strict=True))
    return f"{equal}/{len(whole)} equal, {len(set(map(tuple, whole)))} distinct", equal == len(whole)


def _batches(given: list[list[int]]) -> list[list[list[int]]]:
    return [*([prompt] for prompt in given[:3]), given]


def _reason(text: str) -> str:
    """The last line of a log that names an error."""
    named = [line.strip() for line in text.splitlines() if "Error" in line]
    return (named or text.splitlines())[-1][:300]


def main() -> None:
    """Prints the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE")
    setups.connector_option(parser)
    given = parser.parse_args()
    folder, right = setups.logs("families"), True
    folder.mkdir(parents=True, exist_ok=True)
    for first in range(0, len(given.cases), AT_ONCE):
        with Children(folder) as children:
            started = [start(children, case, folder) for case in given.cases[first : first + AT_ONCE]]
            until = time.monotonic() + READY_S
            for engines in started:
                said, good = compared(engines, until)
                print(f"{engines.case:20} {said}", flush=True)
                right = right and good
    print(f"families: {'all equal' if right else 'NOT equal'}", flush=True)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
