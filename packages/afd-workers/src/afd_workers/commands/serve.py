"""``afd serve``: all roles of one model on this host, behind one OpenAI API."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

from afd_workers.commands.request import duration, make_request, on_cpu
from afd_workers.launch.fleet import Fleet
from afd_workers.launch.plan import LOOPBACK, split

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
    for role in ("attention", "ffn"):
        parser.add_argument(f"--{role}-devices", metavar="D,D", help=f"CUDA devices of the {role} role's processes, "
                            "which both roles may share; without it each process has its own")  # fmt: skip
    parser.add_argument("--start-timeout", type=duration, default=1800.0, metavar="S",
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
