"""Shows AFD's own log lines where vLLM shows its own: vLLM configures no logger but ``vllm``."""

from __future__ import annotations

import logging


def enable() -> None:
    """Gives the ``afd`` loggers vLLM's handlers and level, once; a logger that the user configured is left alone."""
    ours, native = logging.getLogger("afd"), logging.getLogger("vllm")
    if ours.handlers or not native.handlers:
        return
    ours.handlers = list(native.handlers)
    ours.setLevel(native.level)
    ours.propagate = native.propagate
