"""Greedy tokens of native and split serving on a random toy checkpoint, eagerly and from graphs.

    python -m tools.gpu.parity [--device cuda|cpu] [--dbo | --compiled [JSON]]

Prints equal/total per kind of batch; exit code 1 unless all are equal. On CPU only the eager half runs, to try the
script itself. --dbo: graphs with dual-batch overlap instead, where halves of a batch take other kernels than the whole,
so that the agreement is reported and not demanded beyond the first tokens. --compiled: graphs of models that went
through torch.compile, native and attention, with these keys of vLLM's compilation config besides.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections.abc import Mapping
from pathlib import Path

from tools.gpu import agreement, setups
from tools.gpu.children import Child, Children, Failed
from tools.options import json_object

ANSWER_S = 120.0
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


def prompts(count: int, vocabulary: int = 300) -> list[list[int]]:
    """Prompts of 4 to 60 tokens, all different."""
    return [[2 + (n * 37 + place * place * 11) % vocabulary for place in range(4 + n * 7 % 57)] for n in range(count)]


def generate(child: Child, singles: int, batches: list[tuple[int, int]], count: int) -> Mapping[str, list[list[int]]]:
    """Tokens per kind: `singles` prompts one by one, then each batch of (prompts, tokens)."""
    found: dict[str, list[list[int]]] = {f"{singles} single": []}
    for prompt in prompts(singles):
        found[f"{singles} single"] += ask(child, [prompt], count)
    for size, tokens in batches:
        found[f"{size} batched"] = ask(child, prompts(size), tokens)
    return found


def ask(child: Child, given: list[list[int]], count: int) -> list[list[int]]:
    """Tokens of one batch."""
    answer = child.ask({"op": "tokens", "prompts": given, "count": count}, ANSWER_S)
    found = answer["tokens"]
    assert isinstance(found, list)
    return found


def compare(name: str, native: Mapping[str, list[list[int]]], parted: Mapping[str, list[list[int]]]) -> bool:
    """Prints one line per kind."""
    right = True
    for kind, expected in native.items():
        found = parted[kind]
        equal = sum(one == other for one, other in zip(expected, found, strict=True))
        distinct = len({tuple(tokens) for tokens in expected})
        first = [next((i for i, (a, b) in enumerate(zip(x, y, strict=True)) if a != b), -1)
                 for x, y in zip(expected, found, strict=True) if x != y]  # fmt: skip
        note = f"  first differences at {first[:8]}" if first else ""
        print(f"{name:28} {kind:12} {equal:4}/{len(expected):<4} distinct {distinct}{note}", flush=True)
        right = right and equal == len(expected)
    return right


def start_overlap(children: Children, folder: Path) -> dict[str, Child]:
    """A native engine and two splits with graphs, one with overlap in every step that can be split; not ready yet."""
    model = setups.toy(folder / "toy", "cuda")
    base = setups.common(
        model, device="cuda", rows=128, tokens=8192, length=1024, cache=2 << 30, logprobs_mode="raw_logits"
    )  # fmt: skip
    options = setups.graphs(base, SIZES, native=False)
    rule = {"dbo_decode_token_threshold": 2, "dbo_prefill_token_threshold": 2}
    found = {
        "native": children.start("toy-native", setups.ENGINE, {"options": setups.graphs(base, SIZES, native=True)}, 0)
    }
    found["graph"], _ = setups.split(children, "toy-graph", options, setups.eager(base), "cuda")
    found["dbo"], found["ffn"] = setups.split(
        children, "toy-dbo", setups.overlap(options, "thresholds", **rule),
        setups.overlap(setups.eager(base), "thresholds", **rule), "cuda",
    )  # fmt: skip
    return found


def report_overlap(engines: Mapping[str, Child]) -> bool:
    """Prints the agreement of 64 prompts with 128 tokens each; whether overlap took place and is no garbage.

    Microbatches are halves of the prompts, all of one length: native is asked for the same halves as well, since what
    other rows a matrix has decides which kernels multiply it.
    """
    given = [[2 + (n * 37 + place * place * 11) % 300 for place in range(32)] for n in range(64)]
    expected, again = (agreement.ask(engines["native"], given, 128) for _ in range(2))
    halves = agreement.joined(*(agreement.ask(engines["native"], half, 128) for half in (given[:32], given[32:])))
    graph, dbo, twice = (agreement.ask(engines[name], given, 128) for name in ("graph", "dbo", "dbo"))
    print(agreement.line("native graph / itself", expected, again), flush=True)
    print(agreement.line("split graph / native graph", expected, graph), flush=True)
    print(agreement.line("split graph+DBO / native graph", expected, dbo), flush=True)
    print(agreement.line("native graph in halves / native graph", expected, halves), flush=True)
    print(agreement.line("split graph+DBO / native graph in halves", halves, dbo), flush=True)
    print(agreement.line("split graph+DBO / itself", dbo, twice), flush=True)
    told = engines["ffn"].ask({"op": "figures"}, ANSWER_S)
    print(f"  FFN steps: {', '.join(f'{key} {value:.6g}' for key, value in told.items())}", flush=True)
    took_place = told["missing"] == 0 and float(str(told["split"])) > 0
    return took_place and agreement.first_tokens(expected, dbo) > 0.9


def run_overlap() -> bool:
    """The part with --dbo."""
    folder = setups.logs("parity-dbo")
    with Children(folder) as children:
        engines = start_overlap(children, folder)
        children.ready(setups.READY_S)
        return report_overlap(engines)


def run(device: str, *, compiled: Mapping[str, object] | None = None) -> bool:
    """Whether every token of every batch was equal."""
    cuda = device == "cuda"
    folder = setups.logs("parity" if compiled is None else f"parity-compiled-{zlib.crc32(str(compiled).encode())}")
    model = setups.toy(folder / "toy", device)
    rows = 128 if cuda else 8
    base = setups.common(
        model,
        device=device,
        rows=rows,
        tokens=8192 if cuda else 512,
        length=1024,
        cache=(2 << 30) if cuda else 64 << 20,
    )
    batches = [(16, 64), (100, 40)] if cuda else [(6, 16)]
    singles, count = (8, 64) if cuda else (2, 16)
    eager, place = setups.eager(base), 0 if cuda else None
    right = True
    with Children(folder) as children:
        started = time.monotonic()
        native: dict[str, Child] = {}
        parted: dict[str, tuple[Child, Child]] = {}
        if compiled is None:
            native["eager"] = children.start("native-eager", setups.ENGINE, {"options": eager}, place)
            parted["eager"] = setups.split(children, "eager", eager, eager, device)
        if cuda:
            options = setups.graphs(base, SIZES, native=True, compiled=compiled)
            native["graph"] = children.start("native-graph", setups.ENGINE, {"options": options}, place)
            options = setups.graphs(base, SIZES, native=False, compiled=compiled)
            parted["graph"] = setups.split(children, "graph", options, eager, device)
        children.ready(setups.READY_S)
        print(f"{len(native) + 2 * len(parted)} engines ready in {time.monotonic() - started:.0f} s", flush=True)
        for name, (attention, ffn) in parted.items():
            expected = generate(native[name], singles, batches, count)
            found = generate(attention, singles, batches, count)
            right = compare(f"split {name} / native {name}", expected, found) and right
            told = ffn.ask({"op": "figures"}, ANSWER_S)
            print(f"  FFN steps: {', '.join(f'{key} {value:.6g}' for key, value in told.items())}", flush=True)
            if name == "graph":
                right = right and told["missing"] == 0 and float(str(told["replayed"])) > 0
                again = generate(native["graph"], singles, batches, count)
                compare("native graph / native graph", expected, again)
                if "eager" in native:
                    compare("native graph / native eager", generate(native["eager"], singles, batches, count), again)
    return right


def main() -> None:
    """Exit code 0 when everything was equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--dbo", action="store_true")
    kind.add_argument("--compiled", nargs="?", const={}, type=json_object, metavar="JSON")
    setups.connector_option(parser)
    options = parser.parse_args()
    try:
        right = run_overlap() if options.dbo else run(options.device, compiled=options.compiled)
    except Failed as error:
        print(f"FAILED: {error}", flush=True)
        right = False
    good, bad = ("overlap took place", "WRONG") if options.dbo else ("all equal", "NOT equal")
    print(f"parity: {good if right else bad}", flush=True)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
