"""``afd demo``: a small real model served natively and split, side by side, with every token compared."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

from afd_workers import routing
from afd_workers.commands.request import duration, on_cpu
from afd_workers.commands.serve import stop_on_signals, write
from afd_workers.demo.client import Client
from afd_workers.demo.comparison import Comparison, compare
from afd_workers.launch.fleet import Fleet, LaunchError
from afd_workers.launch.free import free_ports
from afd_workers.launch.plan import LOOPBACK, Request, native, split
from afd_workers.launch.topology import Topology

if TYPE_CHECKING:
    Parsers = argparse._SubParsersAction[argparse.ArgumentParser]

_OPTIONS = ("--max-model-len", "512", "--max-num-seqs", "8", "--dtype", "bfloat16", "--enforce-eager",
            "--kv-cache-memory-bytes", str(64 << 20), "--served-model-name", "demo",
            # vLLM's CPU kernel rotates MLA's queries by wrong positions; its own torch code does not.
            "--compilation-config", '{"custom_ops": ["-rotary_embedding"]}')  # fmt: skip
#: Engine and worker share a process (half the imports), and the server answers what its worker counted.
_ENV = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_SERVER_DEV_MODE": "1", "HF_HUB_OFFLINE": "1"}


def add(parsers: Parsers) -> None:
    """Declares the command line."""
    parser = parsers.add_parser(
        "demo", help="compare native and split serving of a small model", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object for machines")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per completion (default: %(default)s)")
    parser.add_argument("--start-timeout", type=duration, default=600.0, metavar="S",
                        help="seconds until every server must be ready (default: %(default)g)")  # fmt: skip
    parser.set_defaults(run=run, takes_rest=False)


def run(options: argparse.Namespace, _rest: tuple[str, ...]) -> int:
    """Prints the comparison; 1 when any token differs."""
    if not 2 <= options.tokens <= 400:
        raise ValueError(f"Expected --tokens from 2 to 400, found {options.tokens}: choose a number between them.")
    routing.refuse("afd demo, which compares tokens")
    started = time.monotonic()
    stop_on_signals()
    with as_file(files("afd_workers") / "demo") as folder, tempfile.TemporaryDirectory(prefix="afd-demo-") as logs:
        prompts = json.loads((folder / "prompts.json").read_text())
        result = _serve_and_compare(folder / "model", prompts, options, Path(logs) / "servers.log")
    seconds = time.monotonic() - started
    if options.json:
        print(json.dumps({**result.as_json(), "seconds": round(seconds, 1)}, indent=2))
    else:
        sys.stdout.write(_text(result, seconds))
    return 0 if result.identical else 1


def _serve_and_compare(model: Path, prompts: list[str], options: argparse.Namespace, log: Path) -> Comparison:
    env = {**os.environ, **_ENV}
    topology = Topology(1, 1)
    one, other = (Request(str(model), topology, LOOPBACK, port, _OPTIONS) for port in free_ports(2))
    cpu = on_cpu()
    servers = (native(one, env, cpu=cpu, ranks=2), *split(other, env, cpu=cpu))
    with log.open("w") as stream:

        def note(line: str) -> None:
            """Progress is shown, the servers' own lines are kept for the case of a failure."""
            if line.startswith("[afd]"):
                write(line)
            else:
                stream.write(f"{line}\n")

        note("[afd] starting one native server, one attention server and one FFN server")
        try:
            with Fleet(servers, note) as fleet:
                fleet.wait_ready(options.start_timeout)
                clients = [Client(f"http://{LOOPBACK}:{request.port}", "demo") for request in (one, other)]
                return compare(clients[0], clients[1], prompts, options.tokens)
        except (LaunchError, OSError):
            stream.flush()
            write(log.read_text()[-8000:])
            raise


def _text(result: Comparison, seconds: float) -> str:
    lines = []
    for pair in result.pairs:
        same = "identical tokens" if pair.identical else "TOKENS DIFFER"
        lines += [f"prompt  {pair.prompt!r}", f"native  {pair.native!r}", f"split   {pair.split!r}  ({same})", ""]
    verdict = "all tokens identical" if result.identical else "tokens differ"
    return "\n".join(
        [
            *lines,
            f"{verdict}: {result.tokens} tokens over {len(result.pairs)} prompts in {seconds:.0f} s",
            f"ms per step      native {result.native_step_ms:.2f}   split {result.split_step_ms:.2f}",
            f"ms per exchange  {result.exchange_ms:.3f}, {result.added_ms_per_exchange:.3f} added to native",
            f"exchanges a step {result.exchanges_per_step}",
            "",
        ]
    )
