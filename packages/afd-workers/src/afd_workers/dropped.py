"""Says when the command line of vLLM drops the "afd" section that a user wrote: AFD would be off without a word."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from afd_workers import logs

_OPTION = "--additional-config"
_SHORTEST = "--ad"  # that vLLM takes for it; several of its options begin with less
_SECTION = '"afd"'

log = logging.getLogger("afd.workers")


def warn(arguments: Sequence[str]) -> None:
    """One line of warning where ``arguments`` (sys.argv) have a section that does not count; of the first process."""
    reason = beside(arguments)
    if not reason:
        return
    import multiprocessing  # vLLM's other processes have the same arguments

    if multiprocessing.parent_process() is None:
        logs.enable()
        log.warning(
            'Expected one %s, found an "afd" section in one that vLLM drops for %s: write all keys into one JSON '
            "object, that section does not count.", _OPTION, reason,
        )  # fmt: skip


def beside(arguments: Sequence[str]) -> str:
    """What vLLM takes instead of an object that has the section, empty where it takes that or none has one.

    Dotted options become one object that stands last, and of several objects the last counts.
    """
    whole: list[str] = []
    dotted = ""
    for at, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        stem, dot, key = name.partition(".")
        stem = stem.replace("_", "-")
        if not (stem.startswith(_SHORTEST) and _OPTION.startswith(stem)):
            continue
        if dot:
            dotted = f"{_OPTION}.{key}"
        else:
            whole += [value] if equals else arguments[at + 1 : at + 2]
    lost = whole if dotted else whole[:-1]
    kept = "" if dotted else "".join(whole[-1:])
    found = any(_SECTION in each for each in lost) and _SECTION not in kept
    return (dotted or f"another {_OPTION}") if found else ""
