"""``afd plan``: what native deployments and splits of a model would give under a load, and what bounds each."""

from __future__ import annotations

import argparse
import functools
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from afd_workers.commands.size import read_config

if TYPE_CHECKING:
    from afd_models.numbers import Config
    from afd_workers.planner.forecast import Forecast, Limits, Planner

    Parsers = argparse._SubParsersAction[argparse.ArgumentParser]

_GIB: Final = 1 << 30
_DEFAULT: Final = ("native4", "dp4ep", "2A2F", "3A1F", "1A3F")
_HEAD: Final = (
    f"{'deployment':16} {'overlap':7} {'requests':>8} {'tok/s':>8} {'per device':>10} {'TPOT ms':>8} {'rows':>6}"
    f" {'KV tokens':>12}  bound by"
)


def add(parsers: Parsers) -> None:
    """Declares the command line."""
    parser = parsers.add_parser(
        "plan", help="what native and split deployments would give", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder with config.json, or that file")
    parser.add_argument(
        "--deploy", nargs="+", default=_DEFAULT, metavar="NAME",
        help="native4: replicas; dp4ep: data and expert parallel; 3A1F: a split; 1A1F-tp2-ep2: its ranks over devices",
    )  # fmt: skip
    parser.add_argument("--times", type=Path, metavar="FILE", help="measured steps, of tools/gpu/bench_step_gpu --json")
    parser.add_argument("--device", default="h200", metavar="NAME", help="what other times come from: h200 (default)")
    parser.add_argument("--memory-gib", type=float, metavar="N", help="of each device, instead of that device's")
    parser.add_argument(
        "--utilization", type=float, default=0.9, metavar="N", help="of it, as vLLM is told (default: %(default)g)"
    )
    parser.add_argument(
        "--prompt", type=int, default=256, metavar="N", help="tokens of each request (default: %(default)s)"
    )
    parser.add_argument(
        "--output", type=int, default=256, metavar="N", help="tokens that each request is given (default: %(default)s)"
    )
    parser.add_argument(
        "--concurrency",
        type=int,
        nargs="+",
        default=[256, 1024],
        metavar="N",
        help="requests at once (default: 256 1024)",
    )
    parser.add_argument(
        "--max-rows",
        type=int,
        default=1024,
        metavar="N",
        help="requests that a rank runs at once (default: %(default)s)",
    )
    parser.add_argument(
        "--front", type=float, default=0.0, metavar="N", help="tokens/s that one API server streams (default: 0, any)"
    )
    parser.set_defaults(run=run, takes_rest=False)


def run(options: argparse.Namespace, _rest: tuple[str, ...]) -> int:
    """Prints a line per deployment, mode and load; ValueError for what cannot be reckoned."""
    from afd_workers.planner.deployment import Deployment
    from afd_workers.planner.device import DEVICES
    from afd_workers.planner.forecast import Limits, Load

    if options.device not in DEVICES:
        raise ValueError(f"Expected a device of {', '.join(DEVICES)}, found {options.device!r}: choose one of them.")
    deployments = [Deployment.parse(name) for name in options.deploy]
    for each in deployments:
        each.check()
    limits = Limits(options.utilization, options.max_rows, options.front)
    planner = make(
        read_config(options.model), limits, options.device, times=options.times, memory_gib=options.memory_gib
    )
    lines = [_HEAD]
    for requests in options.concurrency:
        load = Load(options.prompt, options.output, requests)
        for each in deployments:
            modes = (False, True) if each.overlaps else (False,)
            lines += [_line(planner.forecast(each, load, overlap=mode), requests) for mode in modes]
    sys.stdout.write("".join(f"{line}\n" for line in [*lines, *_notes(options.times, options.device)]))
    return 0


def make(
    config: Config, limits: Limits, device: str = "h200", *, times: Path | None = None, memory_gib: float | None = None
) -> Planner:
    """A planner for a model by its config; ValueError names what is missing, or whose the times are not.

    Times that do not say whose they are, as older ones, are taken with a line on standard error.
    """
    from afd_workers.planner.device import DEVICES
    from afd_workers.planner.forecast import Planner
    from afd_workers.planner.measured import read
    from afd_workers.planner.model import Model
    from afd_workers.planner.times import Estimated, Measured

    @functools.cache
    def model(tp: int, ep: int, dp: int) -> Model:
        return Model.of(config, attention_tp=tp, ffn_ep=ep, dp=dp)

    chosen = DEVICES[device]
    if memory_gib is not None:
        if not 0 < memory_gib < math.inf:
            raise ValueError(f"Expected memory of a device above 0 GiB, found {memory_gib:g}: correct it.")
        chosen = replace(chosen, memory=memory_gib * _GIB)
    estimate = Estimated(model, chosen)
    if times is None:
        return Planner(model, estimate, chosen, limits)
    steps = read(times)
    steps.check(model(1, 1, 1))
    if steps.model is None:
        sys.stderr.write(f"afd plan: {times} does not say whose steps it holds: they are taken for this model's.\n")
    return Planner(model, Measured(steps.points, estimate), chosen, limits)


def _line(found: Forecast, requests: int) -> str:
    each = found.tokens_s / found.deployment.devices
    tpot = f"{found.tpot_ms:8.2f}" if found.rows else f"{'-':>8}"
    return (
        f"{found.deployment!s:16} {'yes' if found.overlap else 'no':7} {requests:8} {found.tokens_s:8.0f} {each:10.0f}"
        f" {tpot} {found.rows:6.0f} {found.kv_tokens:12,}  {found.bound}"
    )


def _notes(times: Path | None, device: str) -> Sequence[str]:
    source = "estimated" if times is None else f"from {times}"
    return (
        f"Steps: {source}; prompts and what lies between and beyond measured sizes: estimated for {device}.",
        "Overlap: with a server of its own for each attention replica, and not in roles of several processes.",
        "KV tokens: of one attention rank. Requests are taken as always there; graphs on every role, no compilation.",
    )
