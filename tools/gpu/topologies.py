"""Greedy tokens of every topology beside native vLLM's: several attention and FFN ranks, tensor and expert parallel.

    python -m tools.gpu.topologies [--connector NAME] [--dtype float32] [CASE ...]

Attention's processes take the host's devices in turn, FFN ranks' from the last one back, so that two devices suffice
for most cases. Where an FFN rank then shares a device with an attention rank that it exchanges with, rows go over
nvlink, since NCCL does not join two processes on one device. A case that needs more devices says so. Servers start at
once, and each case is asked as soon as its own are ready.
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
from tools.gpu.servers import AFD, LOOK_S, Server, Servers, used_mib

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
    """One case's servers; the last one is asked. connector: over which the roles exchange."""

    servers: list[Server]
    connector: str = ""

    def up(self) -> bool:
        """Whether all are ready; Failed when one ended."""
        return all(server.up() for server in self.servers)

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


@dataclass(frozen=True, slots=True)
class Places:
    """Devices of a case's processes, by role."""

    attention: list[str]
    ffn: list[str]

    @classmethod
    def of(cls, case: Case, devices: int) -> Places:
        """See the module."""
        attention, ffn = case.attention * case.tensor[0], case.ffn * case.tensor[1]
        return cls(
            [str(place % devices) for place in range(attention)],
            [str(devices - 1 - place % devices) for place in range(ffn)],
        )

    def connector(self, case: Case) -> str:
        """The one that was asked for, or what two processes of one device need."""
        exchanging = {*self.attention[:: case.tensor[0]]} & {*self.ffn[:: case.tensor[1]]}
        return "nvlink" if exchanging else os.environ.get(setups.CONNECTOR, "auto")


def start(servers: Servers, name: str, case: Case, given: list[str], devices: int) -> Started:
    """All servers of a case; `afd serve` starts them where both roles have as many processes each."""
    places, label = Places.of(case, devices), name.replace(" ", "-").replace(",", "")
    section = {"connector": places.connector(case), "join_timeout_s": 200.0, **case.section}
    if case.tensor[0] == case.tensor[1]:
        more = ["--topology", f"{case.attention}A{case.ffn}F"]
        more += ["--attention-devices", ",".join(places.attention), "--ffn-devices", ",".join(places.ffn)]
        if case.tensor[0] > 1:
            more += ["--tensor-parallel-size", str(case.tensor[0]), "--enable-expert-parallel"]
        more += ["--additional-config", json.dumps({"afd": section})]
        return Started([servers.start(label, [*given, *more], "", AFD)], places.connector(case))
    counts = {"num_attention_ranks": len(places.attention), "num_ffn_ranks": case.ffn}
    section |= {"port": setups.free_port(), **counts}

    def role(role: str, tensor: int, devices: list[str], *more: str, rank: int = 0) -> Server:
        parallel = ["--tensor-parallel-size", str(tensor), *more] if tensor > 1 else list(more)
        config = json.dumps({"afd": {**section, "role": role, "rank": rank}})
        return servers.start(
            f"{label}-{role}-{rank}", [*given, *parallel, "--additional-config", config], ",".join(devices)
        )

    rest = iter(places.ffn)
    ranks = [
        role("ffn", case.tensor[1], list(itertools.islice(rest, case.tensor[1])), "--enable-expert-parallel", rank=rank)
        for rank in range(case.ffn)
    ]
    data = ["--data-parallel-size", str(case.attention)] if case.attention > 1 else []
    return Started([*ranks, role("attention", case.tensor[0], places.attention, *data)], places.connector(case))


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
    told = f"{equal}/{total} equal, {len(distinct)} distinct, {missed} graphs missing, {spent:.0f} s"
    print(f"{name:26} {other.connector:9} {told}", flush=True)
    return equal == total and not missed


def possible(names: Sequence[str], devices: int) -> list[str]:
    """Those of the cases that so many devices suffice for; says what the others need."""
    found = []
    for name in names:
        needed = max(CASES[name].attention * CASES[name].tensor[0], CASES[name].tensor[1])
        if needed > devices:
            print(f"{name:26} not run: it needs {needed} devices, this host has {devices}", flush=True)
        else:
            found.append(name)
    return found


def outcome(name: str, native: Started, other: Started, until: float) -> bool | None:
    """Whether a case is as it should be, None while it is not ready; its line is printed."""
    try:
        if not (native.up() and other.up()):
            if time.monotonic() < until:
                return None
            raise Failed("not ready in time")
        return compare(name, native, other)
    except (Failed, OSError) as error:
        print(f"{name:26} FAILED: {_reason(other, str(error))}", flush=True)
        return False


def run(names: Sequence[str], dtype: str) -> bool:
    """Whether every case that this host has devices for gives native tokens."""
    folder, devices, right = setups.logs("topologies"), len(used_mib()), True
    folder.mkdir(parents=True, exist_ok=True)
    given, until = arguments(setups.spread(folder / "toy"), dtype), time.monotonic() + READY_S
    with Servers(folder) as servers:
        native = Started([servers.start("native", given, "0")])
        cases = {name: start(servers, name, CASES[name], given, devices) for name in possible(names, devices)}
        while cases:
            for name, started in tuple(cases.items()):
                came = outcome(name, native, started, until)
                if came is not None:
                    right = right and came
                    del cases[name]
            time.sleep(LOOK_S)
    return right


def _reason(started: Started, what: str) -> str:
    """What happened, and lines of the case's logs that name an error: the first and the last."""
    lines = [line for server in started.servers for line in server.log_text().splitlines()]
    named = [line.strip()[-240:] for line in lines if "Error" in line and "Traceback" not in line]
    return " || ".join([what.splitlines()[0], *named[:2], *named[-1:]])


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
