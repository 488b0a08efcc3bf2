"""``afd size``: memory of each role and bytes per step of a model, from its config.json alone."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from afd_compat import json_file

if TYPE_CHECKING:
    from afd_models.memory import Sizes

    Parsers = argparse._SubParsersAction[argparse.ArgumentParser]

_GIB: Final = 1 << 30


def add(parsers: Parsers) -> None:
    """Declares the command line."""
    parser = parsers.add_parser(
        "size", help="memory of each role and bytes per step of a model", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder with config.json, or that file")
    parser.add_argument("--attention-tp", type=int, default=1, metavar="N", help="ranks that share attention's part")
    parser.add_argument("--ffn-tp", type=int, default=1, metavar="N", help="ranks that share the FFN part")
    parser.add_argument("--expert-parallel", action="store_true", help="these FFN ranks hold whole experts")
    parser.add_argument("--gate-on-attention", action="store_true", help="router logits travel with the rows")
    parser.add_argument("--shared-on-attention", action="store_true", help="attention holds the shared experts")
    parser.add_argument("--dense-on-attention", action="store_true", help="attention holds the dense layers' FFNs")
    parser.add_argument("--kv-bytes", type=int, metavar="N", help="bytes of an element of the KV cache (1 for fp8)")
    parser.set_defaults(run=run, takes_rest=False)


def run(options: argparse.Namespace, _rest: tuple[str, ...]) -> int:
    """Prints the sizes; ValueError for a model whose sizes are not known."""
    from afd_models.memory import Split, sizes

    split = Split(
        attention_tp=options.attention_tp,
        ffn_tp=options.ffn_tp,
        expert_parallel=options.expert_parallel,
        gate_on_attention=options.gate_on_attention,
        shared_on_attention=options.shared_on_attention,
        dense_on_attention=options.dense_on_attention,
    )
    found = sizes(read_config(options.model), split, kv_bytes=options.kv_bytes)
    sys.stdout.write("".join(f"{line}\n" for line in _lines(found)))
    return 0


def read_config(model: Path) -> dict[str, object]:
    """The text model's part of a config.json; ValueError where there is none."""
    file = model / "config.json" if os.path.isdir(model) else model  # Path.is_dir raises for names that are too long
    config = json_file.read(
        file,
        f"a model's folder or its config.json, found {str(model)!r}",
        "download the model's config.json and give its folder",
    )
    if not isinstance(config, dict):
        raise ValueError(
            f"Expected a mapping in {file}, found {type(config).__name__}: give the model's own config.json."
        )
    nested = config.get("text_config")
    return _text(config, nested) if isinstance(nested, dict) else config


def _text(outer: dict[str, object], nested: dict[str, object]) -> dict[str, object]:
    """A wrapped text model's part of config.json, with what is said of all parts at once."""
    said = {
        "architectures": outer.get("architectures"),
        "quantization_config": outer.get("quantization_config"),
        "torch_dtype": outer.get("torch_dtype") or outer.get("dtype"),
    }
    return {**nested, **{key: value for key, value in said.items() if value is not None}}


def _lines(found: Sizes) -> list[str]:
    return [
        f"parameters: {found.parameters:,}",
        *(
            f"weights of {name}: {size:,} bytes ({size / _GIB:.2f} GiB)"
            for name, size in (
                ("the whole model", found.whole),
                ("one attention rank", found.attention),
                ("one FFN rank", found.ffn),
            )
        ),
        f"KV cache: {found.kv_per_token:,} bytes per token on one attention rank",
        *_state(found),
        f"exchanges: {found.exchanges} per step, {found.exchanged_per_token:,} bytes per token of the step, both ways",
    ]


def _state(found: Sizes) -> list[str]:
    size = found.state_per_request
    return [f"state of linear attention: {size:,} bytes per request on one attention rank"] if size else []
