"""The engines of a run: options for native vLLM and for both roles of a split on one host, and what they load."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from afd_workers.launch.free import free_ports
from tools import toy_checkpoint
from tools.gpu.children import Child, Children

Options = dict[str, object]
#: What every split of a run uses, unless an engine names its own.
CONNECTOR = "AFD_GPU_CONNECTOR"
READY_S = 420.0
ENGINE = "tools.gpu.engine"
SMALL: Mapping[str, object] = {
    "hidden_size": 512,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_routed_experts": 16,
    "moe_intermediate_size": 256,
    "intermediate_size": 1024,
    "max_position_embeddings": 4096,
}
LITE: Mapping[str, object] = {
    **toy_checkpoint.FAMILIES["deepseek-v2"].config,
    "vocab_size": 102400,
    "hidden_size": 2048,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "intermediate_size": 10944,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "max_position_embeddings": 8192,
}
QWEN3_30B: Mapping[str, object] = {
    **toy_checkpoint.FAMILIES["qwen3-moe"].config,
    "vocab_size": 151936,
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "intermediate_size": 6144,
    "mlp_only_layers": [],
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
}
SPREAD: Mapping[str, object] = {
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 128,
}
#: Published models by their dimensions alone.
DIMENSIONS: Mapping[str, Mapping[str, object]] = {"v2-lite": LITE, "qwen3-30b": QWEN3_30B}


def toy(folder: Path, device: str) -> Path:
    """A random DeepSeek-V2 checkpoint with a large standard deviation: any wrong row shows in the tokens."""
    return toy_checkpoint.make("deepseek-v2", folder, layers=5, changes=SMALL if device == "cuda" else None)


def dimensions(name: str, folder: Path) -> Path:
    """The dimensions of a model, see DIMENSIONS, without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(DIMENSIONS[name], indent=2))
    return folder


def spread(folder: Path) -> Path:
    """A random Qwen3-MoE checkpoint whose heads and experts can be dealt to several processes."""
    return toy_checkpoint.make("qwen3-moe", folder, layers=4, changes=SPREAD)


def lite(folder: Path) -> Path:
    """The dimensions of DeepSeek-V2-Lite without weights."""
    return dimensions("v2-lite", folder)


def common(model: Path, *, device: str, rows: int, tokens: int, length: int, cache: int, **more: object) -> Options:
    """Options that all engines of a run share, or they would group requests differently."""
    options: Options = {
        "model": str(model),
        "dtype": "bfloat16",
        "max_num_seqs": rows,
        "max_num_batched_tokens": tokens,
        "max_model_len": length,
        "kv_cache_memory_bytes": cache,
        "enable_prefix_caching": False,
        "skip_tokenizer_init": True,
        "seed": 0,
        **more,
    }
    if device == "cuda":
        options["gpu_memory_utilization"] = 0.1  # several engines share a device; the cache's size is given
    return options


def eager(options: Options) -> Options:
    """Without graphs."""
    return {**options, "enforce_eager": True}


def graphs(
    options: Options, sizes: Sequence[int], *, native: bool, compiled: Mapping[str, object] | None = None
) -> Options:
    """With graphs of whole decode steps, which native vLLM has to be told and AFD chooses itself.

    compiled: through torch.compile, which AFD does when it is asked for, with these further options, and with vLLM's
    own kernels for what they are there for: the compiler's own differ in their last bit with what surrounds them, and
    that is not the same here.
    """
    chosen: dict[str, object] = {"cudagraph_capture_sizes": list(sizes)}
    if native or compiled is not None:
        chosen |= {"mode": 0 if compiled is None else 3, "cudagraph_mode": "FULL_DECODE_ONLY"}
    if compiled is not None:
        chosen |= {"custom_ops": ["all"], **compiled}
    return {**options, "compilation_config": chosen}


def overlap(options: Options, rule: str, **thresholds: int) -> Options:
    """With dual-batch overlap, in the steps that `rule` lets be split, see Config.dbo_rule; for both roles."""
    return {**options, "enable_dbo": True, **thresholds, "afd": {"dbo_rule": rule}}


def role(options: Options, name: str, port: int, **more: object) -> Options:
    """One role of a split whose FFN rank listens at `port`."""
    given = dict(options)
    section = {"role": name, "port": port, "join_timeout_s": 300, "connector": os.environ.get(CONNECTOR, "auto")}
    section |= {**given.pop("afd", {}), **more}  # type: ignore[dict-item]
    return {**given, "additional_config": {"afd": section}}


def split(
    children: Children, name: str, attention: Options, ffn: Options, device: str, **more: object
) -> tuple[Child, Child]:
    """(attention, FFN) on the first and the second device, started together; more: keys of "afd" for both."""
    port = free_port()
    places = (0, 1) if device == "cuda" else (None, None)
    other = children.start(f"{name}-ffn", ENGINE, {"options": role(ffn, "ffn", port, **more)}, places[1])
    options = role(attention, "attention", port, **more)
    one = children.start(f"{name}-attention", ENGINE, {"options": options}, places[0])
    return one, other


def free_port() -> int:
    """A port that nobody listens on just now and that no connection is given."""
    return free_ports(1)[0]


def logs(name: str) -> Path:
    """Where a run keeps its logs and models: under $AFD_GPU_LOGS, or in the temporary folder."""
    return Path(os.environ.get("AFD_GPU_LOGS", "/tmp/afd-gpu")) / name


def connector_option(parser: argparse.ArgumentParser) -> None:
    """--connector, for all splits of a run."""

    class Chosen(argparse.Action):
        def __call__(self, _parser: object, _namespace: object, value: object, _option: object = None) -> None:
            os.environ[CONNECTOR] = str(value)

    parser.add_argument("--connector", action=Chosen, help="of every split, instead of what auto picks")
