"""The ``afd`` command."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Sequence

from afd_workers.commands import demo, doctor, models, patches, plan, serve, size
from afd_workers.commands.request import normal
from afd_workers.launch.fleet import LaunchError

COMMANDS = (serve, demo, models, size, plan, patches, doctor)
#: Those that only write, whose reader may have enough before they end.
_WRITING = ("models", "size", "plan", "patches", "doctor")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one subcommand and returns its exit code: 0 done, 1 failed, 2 wrong usage, 128 and more a signal."""
    parser = argparse.ArgumentParser(
        prog="afd", description="Attention-FFN disaggregation for vLLM.", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character still gets the sentence
    given = [normal(argument) for argument in (sys.argv[1:] if arguments is None else arguments)]
    options, rest = parser.parse_known_args(given)
    if rest and not options.takes_rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if options.takes_rest and "--" in given:  # argparse drops some of these and takes what follows for no option
        rest = ["--"]
    try:
        return _carry_out(options, tuple(rest))
    except (ValueError, LaunchError, OSError) as error:
        print(f"afd {options.command}: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    except KeyboardInterrupt:
        return 130


def _carry_out(options: argparse.Namespace, rest: tuple[str, ...]) -> int:
    if options.command not in _WRITING:
        code: int = options.run(options, rest)
        return code
    try:
        code = options.run(options, rest)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes what is left when it ends
        return 128 + signal.SIGPIPE
    return code


if __name__ == "__main__":
    sys.exit(main())
