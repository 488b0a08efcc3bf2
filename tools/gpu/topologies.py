"""Greedy tokens of every topology beside native vLLM's: several attention and FFN ranks, tensor and expert parallel.

    python -m tools.gpu.topologies [--connector NAME] [--dtype float32] [CASE ...]

Servers of one case are dealt the host's devices in turn, so that two devices suffice for most cases, shared; a case
whose attention has more processes than there are devices says so. All servers start at once and answer case by case.
In float32 a different number of rows, or a sum in another order, changes no greedy token, so tokens must be equal.
Exit code 1 when some are not.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tools.gpu import setups
from tools.gpu.children import Failed
from tools.gpu.parity import prompts
from tools.gpu.serve_check import completion
from tools.gpu.servers import AFD, Server, Servers, used_mib

SIZES = (1, 2, 4, 8, 16)
SINGLES, TOGETHER, TOKENS, READY_S = 6, 12, 24, 220.0
MISSED = "has no graph for a step"


@dataclass(frozen=True, slots=True)
class Case:
    """attention, ffn: replicas and ranks; tensor: processes of each of them, (attention, FFN), the latter with whole
    experts each. section: keys of "afd".
    """

    attention: int = 1
    ffn: int = 1
    tensor: tuple[int, int] = (1, 1)
    section: dict[str, object] = field(default_factory=dict)


CASES = {
    "1A1F": Case(),
    "1A1F, gate on attention": Case(section={"compute_gate_on_attention": True}),
    "2A1F": Case(attention=2),
    "1A2F": Case(ffn=2),
    "2A2F": Case(attention=2, ffn=2),
    "1A3F": Case(ffn=3),
    "3A1F": Case(attention=3),
    "1A1F, FFN EP2": Case(tensor=(1, 2)),
    "1A1F, attention TP2": Case(tensor=(2, 1)),
    "1A1F, TP2 x EP2": Case(tensor=(2, 2)),
}


@dataclass(frozen=True, slots=True)
class Started:
    """One case's servers; the last one is asked."""

    servers: list[Server]

    def ask(self, given: Sequence[list[int]]) -> list[list[int]]:
        """Tokens of all prompts at once."""
        with ThreadPoolExecutor(len(given)) as pool:
            return list(pool.map(lambda prompt: completion(self.servers[-1].url, prompt, TOKENS), given))

    def missed(self) -> int:
        """Kinds of steps that an FFN rank had no graph for."""
        return sum(server.log_text().count(MISSED) for server in self.servers)


def arguments(model: Path, dtype: str, *more: str) -> list[str]:
    """What every server is given."""
    found = [str(model), "--served-model-name", "toy", "--dtype", dtype, "--no-enable-prefix-caching"]
    found += ["--max-num-seqs", "16", "--max-num-batched-tokens", "1024", "--max-model-len", "512"]
    found += ["--kv-cache-memory-bytes", str(256 << 20), "--gpu-memory-utilization", "0.05"]
    found += ["--attention-backend", "TRITON_ATTN"] if dtype == "float32" else []
    chosen = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": list(SIZES)}
    return [*found, "--compilation-config", json.dumps(chosen), *more]


def start(servers: Servers, name: str, case: Case, given: list[str], devices: int) -> Started:
    """All servers of a case; `afd serve` starts them where both roles have as many processes each."""
    attention, processes = case.attention * case.tensor[0], case.ffn * case.tensor[1]
    places = [str(place % devices) for place in range(attention + processes)]
    label = name.replace(" ", "-").replace(",", "")
    section = {"connector": os.environ.get(setups.CONNECTOR, "auto"), "join_timeout_s": 200.0, **case.section}
    if case.tensor[0] == case.tensor[1]:
        more = ["--topology", f"{case.attention}A{case.ffn}F"]
        more += ["--attention-devices", ",".join(places[:attention]), "--ffn-devices", ",".join(places[attention:])]
        if case.tensor[0] > 1:
            more += ["--tensor-parallel-size", str(case.tensor[0]), "--enable-expert-parallel"]
        more += ["--additional-config", json.dumps({"afd": section})]
        return Started([servers.start(label, [*given, *more], "", AFD)])
    section |= {"port": setups.free_port(), "num_attention_ranks": attention, "num_ffn_ranks": case.ffn}

    def role(role: str, tensor: int, devices: list[str], *more: str, rank: int = 0) -> Server:
        parallel = ["--tensor-parallel-size", str(tensor), *more] if tensor > 1 else list(more)
        config = json.dumps({"afd": {**section, "role": role, "rank": rank}})
        return servers.start(
            f"{label}-{role}-{rank}", [*given, *parallel, "--additional-config", config], ",".join(devices)
        )

    rest = iter(places[attention:])
    ranks = [
        role("ffn", case.tensor[1], list(itertools.islice(rest, case.tensor[1])), "--enable-expert-parallel", rank=rank)
        for rank in range(case.ffn)
    ]
    data = ["--data-parallel-size", str(case.attention)] if case.attention > 1 else []
    return Started([*ranks, role("attention", case.tensor[0], places[:attention], *data)])


def batches() -> Iterator[list[list[int]]]:
    """What every case is asked: some prompts alone, then all at once."""
    given = prompts(TOGETHER)
    yield from ([prompt] for prompt in given[:SINGLES])
    yield given


def compare(name: str, native: Started, other: Started) -> bool:
    """Prints the case's line; whether all tokens are equal and no graph was missed."""
    began, equal, total, distinct = time.monotonic(), 0, 0, set[tuple[int, ...]]()
    for given in batches():
        for one, found in zip(native.ask(given), other.ask(given), strict=True):
            equal, total = equal + (one == found), total + 1
            distinct.add(tuple(one))
    missed = other.missed()
    spent = time.monotonic() - began
    print(
        f"{name:26} {equal}/{total} equal, {len(distinct)} distinct, {missed} graphs missing, {spent:.0f} s", flush=True
    )
    return equal == total and not missed


def run(names: Sequence[str], dtype: str) -> bool:
    """Whether every case that this host has devices for gives native tokens."""
    folder, devices, right = setups.logs("topologies"), len(used_mib()), True
    folder.mkdir(parents=True, exist_ok=True)
    given = arguments(setups.spread(folder / "toy"), dtype)
    with Servers(folder) as servers:
        native = Started([servers.start("native", given, "0")])
        cases: dict[str, Started] = {}
        for name in names:
            case = CASES[name]
            needed = max(case.attention * case.tensor[0], case.tensor[1])
            if needed > devices:
                print(f"{name:26} not run: it needs {needed} devices, this host has {devices}", flush=True)
                continue
            cases[name] = start(servers, name, case, given, devices)
        until = time.monotonic() + READY_S
        native.servers[0].ready(until)
        for name, started in cases.items():
            try:
                for server in started.servers:
                    server.ready(until)
                right = compare(name, native, started) and right
            except (Failed, OSError) as error:
                right = False
                print(f"{name:26} FAILED: {_reason(started, error)}", flush=True)
    return right


def _reason(started: Started, error: BaseException) -> str:
    """Lines of the case's logs that name an error, the first and the last, or the error itself."""
    lines = [line for server in started.servers for line in server.log_text().splitlines()]
    named = [line.strip()[-240:] for line in lines if "Error" in line and "Traceback" not in line]
    return " || ".join([str(error).splitlines()[0], *named[:2], *named[-1:]])


def main() -> None:
    """Prints one line per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE", help=", ".join(map(repr, CASES)))
    parser.add_argument("--dtype", default="float32")
    setups.connector_option(parser)
    options = parser.parse_args()
    try:
        right = run(options.cases, options.dtype)
    except Failed as error:
        print(f"FAILED: {error}", flush=True)
        right = False
    print(f"topologies: {'all equal' if right else 'NOT equal'}", flush=True)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
