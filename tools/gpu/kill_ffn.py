"""Kills the FFN process in mid-decode: a standby, or the rank started again, must go on without a wrong token.

    python -m tools.gpu.kill_ffn [--modes graph dbo eager] [--device cuda|cpu]

Prints one row per mode and case: requests whose tokens equal native vLLM's, seconds from the kill until tokens come
again, and what took them. dbo: graphs with every step in two microbatches, beside native vLLM's tokens of the same
halves of the batch. Exit code 1 unless all tokens are equal. On CPU the script tries itself, eagerly.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.gpu import setups
from tools.gpu.children import Child, Children, Failed
from tools.gpu.parity import prompts

ANSWER_S = 90.0
REQUESTS = 16
COUNTS: Mapping[str, int] = {"graph": 600, "dbo": 400, "eager": 200, "cpu": 48}
#: Every step that has two rows is split.
ALWAYS = {"dbo_decode_token_threshold": 2, "dbo_prefill_token_threshold": 2}
SIZES = (1, 2, 4, 8, 16)
PARTS = ("drain_s", "rejoin_s", "capture_s", "total_s")
HEAD = (
    "| mode | case | requests equal to native | distinct | tokens again after the kill, s | " + " | ".join(PARTS) + " |"
)


@dataclass(slots=True)
class Split:
    """One mode's engines; port: the FFN rank's, standby_port: its standby's; serving: who answers just now."""

    mode: str
    native: Child
    attention: Child
    serving: Child
    standby: Child
    port: int
    standby_port: int
    count: int
    ffn: setups.Options
    expected: object = None

    def given(self) -> list[list[int]]:
        """Its prompts; where steps are split all of one length, so that both halves hold whole requests."""
        if self.mode != "dbo":
            return prompts(REQUESTS)
        return [[2 + (n * 37 + place * place * 11) % 300 for place in range(32)] for n in range(REQUESTS)]

    def learn(self) -> None:
        """Asks native vLLM, for halves where steps are split: other rows beside it change how a row is computed."""
        given, found = self.given(), list[object]()
        size = REQUESTS // 2 if self.mode == "dbo" else REQUESTS
        for first in range(0, REQUESTS, size):
            job = {"op": "stream", "prompts": given[first : first + size], "count": self.count}
            tokens = self.native.ask(job, ANSWER_S)["tokens"]
            assert isinstance(tokens, list)
            found += tokens
        self.expected = found

    def job(self, mark: Path | None = None) -> dict[str, object]:
        """The same requests each time, whose file `mark` appears when a third of their tokens is there."""
        job: dict[str, object] = {"op": "stream", "prompts": self.given(), "count": self.count}
        return job if mark is None else {**job, "mark": str(mark), "at": self.count // 3}


def start(children: Children, mode: str, base: setups.Options, device: str) -> Split:
    """Native, attention, its FFN rank and a standby: attention on the first device, the FFN ranks on the second."""
    cuda = device == "cuda"
    eager, (port, standby_port) = setups.eager(base), (setups.free_port(), setups.free_port())
    native = attention = ffn = eager
    if mode in ("graph", "dbo"):
        native, attention = (setups.graphs(base, SIZES, native=each) for each in (True, False))
    if mode == "dbo":
        attention, ffn = (setups.overlap(each, "thresholds", **ALWAYS) for each in (attention, ffn))
    extra = {"standby_addresses": [f"127.0.0.1:{standby_port}"]}
    first, second = (0, 1) if cuda else (None, None)

    def engine(name: str, options: setups.Options, place: int | None) -> Child:
        return children.start(f"{mode}-{name}", setups.ENGINE, {"options": options}, place)

    return Split(
        mode,
        engine("native", native, first),
        engine("attention", setups.role(attention, "attention", port, connector_extra_config=extra), first),
        engine("ffn", setups.role(ffn, "ffn", port), second),
        engine("standby", setups.role(ffn, "ffn", standby_port), second),
        port,
        standby_port,
        COUNTS[mode if cuda else "cpu"],
        ffn,
    )


def kill_in_the_middle(split: Split, folder: Path, case: str) -> float:
    """Starts the requests, kills whoever serves them once each has a third of its tokens; the moment of the kill."""
    mark = folder / f"{split.mode}-{case}"
    mark.unlink(missing_ok=True)
    split.attention.begin(split.job(mark))
    until = time.monotonic() + ANSWER_S
    while not mark.exists():
        if time.monotonic() > until:
            raise Failed(f"{split.mode}: a third of the tokens was not there within {ANSWER_S:g} s")
        time.sleep(0.001)
    moment = time.monotonic()
    split.serving.kill()
    return moment


def row(split: Split, case: str, killed: float) -> tuple[bool, str]:
    """Whether every token was right, and the table's row, which is printed too."""
    answer = split.attention.answer(ANSWER_S)
    found, expected = answer["tokens"], split.expected
    assert isinstance(found, list)
    assert isinstance(expected, list)
    equal = sum(one == other for one, other in zip(expected, found, strict=True))
    told = split.attention.ask({"op": "figures"}, ANSWER_S)
    parts = [f"{float(str(told.get(name, 'nan'))):.3f}" for name in PARTS]
    distinct = len({tuple(tokens) for tokens in expected})
    again = f"{pause(answer['times'], killed):.2f}"
    line = f"| {split.mode} | {case} | {equal}/{len(expected)} | {distinct} | {again} | {' | '.join(parts)} |"
    print(line, flush=True)
    return equal == len(expected), line


def print_guard(split: Split) -> None:
    """What being able to run a step again costs, beside the step."""
    answer = split.attention.ask(split.job(), ANSWER_S)
    times = answer["times"]
    assert isinstance(times, list)
    steps = sorted(1e6 * (later - earlier) for earlier, later in itertools.pairwise(times))
    told = split.attention.ask({"op": "guard"}, ANSWER_S)
    parts = ", ".join(f"{name} {float(str(value)):.1f}" for name, value in told.items())
    print(f"{split.mode}: {parts}; a step of {REQUESTS} rows takes {steps[len(steps) // 2]:.0f} us", flush=True)


def choose(split: Split) -> None:
    """Sees who serves: attention joins whichever of the two listens first."""

    def replayed(child: Child) -> float:
        told = child.ask({"op": "figures"}, ANSWER_S)
        return float(str(told["replayed"])) + float(str(told["eager"]))

    if replayed(split.standby) > replayed(split.serving):
        split.serving, split.standby = split.standby, split.serving
        split.port, split.standby_port = split.standby_port, split.port


def pause(times: object, killed: float) -> float:
    """Seconds from the kill to the end of the longest pause after it; what was in flight may still come at once."""
    assert isinstance(times, list)
    later = [moment for moment in times if moment > killed]
    if not later:
        raise Failed("every token was there before the kill; nothing was tried")
    before = max((moment for moment in times if moment <= killed), default=killed)
    steps = zip([before, *later], later, strict=False)
    end: float = max(steps, key=lambda step: step[1] - step[0])[1]
    return end - killed


def run(modes: Sequence[str], device: str) -> bool:
    """Whether every token of every case was right."""
    cuda = device == "cuda"
    folder = setups.logs("kill-ffn")
    model = setups.toy(folder / "toy", device)
    base = setups.common(
        model,
        device=device,
        rows=REQUESTS,
        tokens=2048 if cuda else 512,
        length=1024,
        cache=(1 << 30) if cuda else 64 << 20,
    )
    rows: list[tuple[bool, str]] = []
    with Children(folder) as children:
        began = time.monotonic()
        splits = [start(children, mode, base, device) for mode in modes]
        children.ready(setups.READY_S)
        print(f"{len(children.all)} engines ready in {time.monotonic() - began:.0f} s", flush=True)
        for split in splits:
            split.learn()
            split.native.kill()
            if cuda:
                print_guard(split)
                choose(split)
            killed = kill_in_the_middle(split, folder, "standby")
            rows.append(row(split, "standby", killed))
            split.serving = split.standby
        moments = [kill_in_the_middle(split, folder, "restart") for split in splits]
        for split in splits:
            again = {"options": setups.role(split.ffn, "ffn", split.port)}
            split.serving = children.start(f"{split.mode}-again", setups.ENGINE, again, 1 if cuda else None)
        for split, killed in zip(splits, moments, strict=True):
            rows.append(row(split, "restart", killed))
    print("\n".join(["", HEAD, "|" + "---|" * (HEAD.count(" | ") + 1), *(line for _, line in rows)]), flush=True)
    return all(right for right, _ in rows)


def main() -> None:
    """Exit code 0 when every token was right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", choices=("eager", "graph", "dbo"))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    setups.connector_option(parser)
    options = parser.parse_args()
    try:
        right = run(
            options.modes or (("graph", "dbo", "eager") if options.device == "cuda" else ("eager",)), options.device
        )
    except Failed as error:
        print(f"FAILED: {error}", flush=True)
        right = False
    print("kill: all tokens right" if right else "kill: NOT right", flush=True)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
