"""Reads those of vLLM's options that decide what AFD starts, without vLLM, which takes half a minute to refuse them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """What vLLM's ``EngineArgs`` would hold under the same names."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    prefill_context_parallel_size: int
    decode_context_parallel_size: int
    data_parallel_size: int
    enable_expert_parallel: bool
    enable_eplb: bool
    enable_elastic_ep: bool
    enable_dbo: bool
    ubatch_size: int
    enable_lora: bool
    speculative_config: str | None
    spec_method: str | None
    spec_model: str | None
    spec_tokens: str | None
    load_format: str | None
    enable_sleep_mode: bool
    enable_return_routed_experts: bool
    weight_transfer_config: str | None


_SIZES: tuple[tuple[str, ...], ...] = (
    ("--tensor-parallel-size", "-tp"),
    ("--pipeline-parallel-size", "-pp"),
    ("--prefill-context-parallel-size", "-pcp"),
    ("--decode-context-parallel-size", "-dcp"),
    ("--data-parallel-size", "-dp"),
)
_SWITCHES: tuple[tuple[str, ...], ...] = (
    ("--enable-expert-parallel", "-ep"),
    ("--enable-eplb",),
    ("--enable-elastic-ep",),
    ("--enable-dbo",),
    ("--enable-lora",),
    ("--enable-sleep-mode",),
    ("--enable-return-routed-experts",),
)
_TEXTS: tuple[tuple[str, ...], ...] = (
    ("--speculative-config", "-sc"),
    ("--weight-transfer-config",),
    ("--spec-method",),
    ("--spec-model",),
    ("--spec-tokens",),
    ("--load-format",),
)
_OBJECTS = (*_TEXTS[0], *_TEXTS[1])


def read(given: Sequence[str]) -> Options:
    """From options as vLLM's command line takes them; ValueError for a value that cannot be one."""
    # Options of vLLM that are not known here are passed over, so that an abbreviation might mean any of them.
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for names in _SIZES:
        parser.add_argument(*names, type=int, default=1)
    parser.add_argument("--ubatch-size", type=int, default=0)
    for names in _SWITCHES:
        parser.add_argument(*names, action=argparse.BooleanOptionalAction, default=False)
    for names in _TEXTS:
        parser.add_argument(*names)
    try:
        known, _ = parser.parse_known_args([_undotted(argument) for argument in given])
    except argparse.ArgumentError as error:
        raise ValueError(f"Expected options that vLLM takes, found {error}: correct it.") from error
    options = Options(**vars(known))
    if options.tensor_parallel_size < 1:
        raise ValueError(
            f"Expected --tensor-parallel-size of at least 1, found {options.tensor_parallel_size}: correct it."
        )
    return options


def _undotted(argument: str) -> str:
    """``--speculative-config.method=x``, vLLM's way to give one key of an object, as the whole option."""
    name, dot, key = argument.partition(".")
    return f"{name}={key}" if dot and name in _OBJECTS else argument
