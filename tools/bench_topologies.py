"""Topologies of real vLLM servers: their tokens beside native vLLM's, and what the loss of an FFN server does.

    python -m tools.bench_topologies [--device cpu|cuda] [--parts 2A2F 3A1F ...] [--family qwen3-moe]
        [--dtype float32] [--connector NAME] [--prompts 8] [--tokens 48] [--no-kill] [--standby] [--at-once]
        [--json FILE]

A part is a deployment as `afd plan` names it, each attention replica a server of its own. On CUDA :dbo and :eager may
follow, and a part that needs more devices than there are says so (AFD_GPU_DEVICES=0,1,0,1 has four places on two
devices, for what is not about speed). Prints a Markdown table, a line per part as it is
done. alone: requests with native vLLM's tokens, of each attention server asked by itself, one prompt after the other.
together: of all servers asked at once, where rows of several ranks are one batch. Then the last FFN server is killed
(SIGKILL) while all of them stream, and started again: requests with native tokens of attention servers that exchange
with it, and of the others; the longest pause of either; and when the next token came after the new server listened.
With --standby a second server of that rank is ready before the kill, and the next token counts from the kill. With
--at-once the servers of all parts start together, which saves most of the time, and the parts take turns.

Exit code 1 unless, on a CPU and in float32, every token is native's; in bfloat16 on CUDA those of "alone", as larger
batches take other kernels.
Where a part's roles have different numbers of processes, sums may be added in another order than in native vLLM:
compare in float32 before a difference is put down to that. On CUDA Triton then multiplies without rounding to TF32
(TRITON_F32_DEFAULT, unless it is set), or another number of rows would decide near ties.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from tools import toy_checkpoint
from tools.gpu import setups
from tools.gpu.children import Failed
from tools.gpu.serve_parts import Part, read_part
from tools.gpu.servers import Servers, places
from tools.options import positive
from tools.topologies import room
from tools.topologies.outcome import HEAD, Outcome
from tools.topologies.started import Started, Wanted
from tools.topologies.trial import READY_S, Trial


def run(trial: Trial, parts: Sequence[Part], file: Path | None, at_once: bool) -> bool:
    """Whether every part went through with the tokens that it must have."""
    right, found = True, list[Outcome]()
    print(HEAD, "|" + "---|" * (HEAD.count(" | ") + 1), sep="\n", flush=True)
    possible = []
    for each in parts:
        lacking = each.lacking(places()) if trial.cuda else None
        if lacking is None:
            possible.append(each)
        else:
            print(f"left out: {lacking}", flush=True)
    if not possible:
        raise Failed("no part can run here: name others")
    for group in [possible] if at_once else [[each] for each in possible]:
        for each, outcome in _outcomes(trial, group):
            if isinstance(outcome, Outcome):
                print(outcome, flush=True)
                found.append(outcome)
                equal, asked = outcome.alone
                right = right and (equal == asked if trial.cuda and not trial.exact else outcome.right)
            else:
                print(f"FAILED: {each}: {type(outcome).__name__}: {outcome}", flush=True)
                right = False
            if file is not None:
                file.write_text(json.dumps([asdict(one) for one in found], indent=2))
    return right


def _outcomes(trial: Trial, group: Sequence[Part]) -> Iterator[tuple[Part, Outcome | Exception]]:
    """Of topologies that start at once, each in its turn; while one waits for an FFN server, another may run."""
    turn = threading.Lock()

    def one(started: Started) -> Outcome | Exception:
        try:
            started.ready(time.monotonic() + READY_S)
            return trial.measure(servers, started, turn)
        except (Failed, OSError, ValueError, AssertionError) as error:
            return error

    with Servers(trial.folder) as servers:
        natives = trial.native(servers, group)
        if len(group) == 1:
            trial.learn(natives)  # quiet for what follows
        all_started = [trial.start(servers, each) for each in group]
        if len(group) > 1:
            trial.learn(natives)
        with ThreadPoolExecutor(max(1, len(group))) as pool:
            yield from zip(group, pool.map(one, all_started), strict=True)


def _ended(number: int, _frame: FrameType | None) -> None:
    """A signal ends the run as an error does, so that no server stays behind."""
    raise SystemExit(128 + number)


def read_split(text: str) -> Part:
    """For argparse."""
    part = read_part(text)
    if part.deployment.kind != "split":
        raise argparse.ArgumentTypeError(f"Expected a split such as 2A2F, found {text!r}: it is compared with native.")
    return part


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--parts", nargs="+", type=read_split, default=[Part.parse(name) for name in ("2A2F", "3A1F", "1A3F")]
    )
    parser.add_argument(
        "--family", choices=toy_checkpoint.runnable(), default="qwen3-moe", help="of the checkpoint, on a CPU"
    )
    parser.add_argument("--prompts", type=positive, default=8)
    parser.add_argument("--tokens", type=positive, default=48)
    parser.add_argument("--no-kill", dest="kill", action="store_false")
    parser.add_argument("--standby", action="store_true")
    parser.add_argument("--at-once", action="store_true")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--json", type=Path)
    setups.connector_option(parser)
    given = parser.parse_args()
    if given.json is not None and not given.json.parent.is_dir():  # it is written after minutes
        parser.error(f"argument --json: expected a file in a folder that exists, found {given.json}")
    if given.device == "cpu":
        try:
            processors = len(os.sched_getaffinity(0))
            room.check(given.parts, processors, standby=given.standby, at_once=given.at_once)
        except ValueError as error:
            parser.error(f"argument --parts: {error}")
    signal.signal(signal.SIGTERM, _ended)
    os.environ.setdefault(setups.CONNECTOR, "auto")
    if given.dtype == "float32":
        os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")
    wanted = Wanted(
        given.device, given.family, given.prompts, given.tokens, given.kill, given.dtype, given.standby
    )  # fmt: skip
    try:
        right = run(Trial(setups.logs("topologies"), wanted), given.parts, given.json, given.at_once)
    except Failed as error:
        print(f"FAILED: {error}", flush=True)
        right = False
    print("topologies: tokens as promised" if right else "topologies: NOT as promised", flush=True)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
