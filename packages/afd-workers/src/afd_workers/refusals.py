"""What this version cannot do together with AFD, each refused at start-up in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from afd_connectors.layout import Layout
from afd_models import keep
from afd_workers import features

if TYPE_CHECKING:
    from vllm.config import ParallelConfig, SpeculativeConfig
    from vllm.engine.arg_utils import EngineArgs

    from afd_compat.config import Config
    from afd_connectors.ports import Connector
    from afd_models.spec import MoE
    from afd_workers.launch.options import Options
    from afd_workers.platform import Platform


#: (engine option, the value that AFD needs, what to do instead), for either role.
_NEEDED: tuple[tuple[str, object, str], ...] = (
    ("pipeline_parallel_size", 1, "set it to 1"),
    ("prefill_context_parallel_size", 1, "set it to 1"),
    ("decode_context_parallel_size", 1, "set it to 1"),
    ("enable_eplb", False, "leave it out"),
    ("enable_elastic_ep", False, "leave it out"),
    *features.REFUSED,
)
#: Load formats whose files hold a whole model as a worker had it in memory, which no role can take its part of.
_WHOLE_MODEL = ("ipc_cache", "modelexpress", "runai_streamer_sharded", "sharded_state", "tensorizer")


def check(options: EngineArgs | Options, config: Config) -> None:
    """ValueError for the first option that does not work with ``config.role``."""
    needed = _NEEDED
    if config.role == "ffn":
        instead = "start one server per FFN rank instead, each with its own rank in the afd section"
        needed = (*needed, ("data_parallel_size", 1, instead))
    elif config.shared_experts_on_attention:  # each rank would hold a part of their sum
        needed = (*needed, ("tensor_parallel_size", 1, "set it to 1, or shared_experts_on_attention to false"))
    check_on((*needed, *_without_adapters(config)), options, config)
    if options.load_format is not None and options.load_format.lower() in _WHOLE_MODEL:  # vLLM lowers them too
        raise ValueError(
            f"AFD's {config.role} role cannot take its part of what load_format={options.load_format} loads, a whole "
            "model as it was in memory: give the original checkpoint and leave --load-format out."
        )


def _without_adapters(config: Config) -> Iterator[tuple[str, object, str]]:
    """Layers of an adapter are told by their last names, which FFN parts on attention share with the FFN role's."""
    for key in ("shared_experts_on_attention", "dense_layers_on_attention"):
        if getattr(config, key):
            yield "enable_lora", False, f"leave LoRA out, or set {key} to false"


def check_connector(connector: type[Connector], config: Config) -> None:
    """ValueError for what the chosen connector cannot carry."""
    if config.compute_gate_on_attention and "router" not in connector.features:
        raise ValueError(
            f"compute_gate_on_attention needs a connector that carries router logits, found {connector.name!r}: set it "
            "to false, or choose another connector."
        )


def check_platform(chosen: Platform, options: EngineArgs | Options, config: Config) -> None:
    """ValueError for what does not work on a platform."""
    check_on(chosen.needed, options, config)
    if options.enable_dbo:
        check_on(chosen.needed_with_overlap, options, config)
    if chosen.one_ffn_rank and config.role == "attention":
        _check_groups(options.data_parallel_size, options.tensor_parallel_size, config)


def _check_groups(replicas: int, tensor: int, config: Config) -> None:
    """Tensor-parallel attention ranks hold equal rows, which the first of them exchanges with its one FFN rank."""
    count = config.num_attention_ranks
    for first in range(config.rank, min(config.rank + replicas * tensor, count - tensor + 1), tensor):
        layouts = (Layout("attention", first + place, count, config.num_ffn_ranks) for place in range(tensor))
        if tensor > 1 and len({peer for layout in layouts for peer in layout.peers}) > 1:
            raise ValueError(
                f"Expected one FFN rank for the {tensor} tensor-parallel processes of an attention replica on this "
                f"device, found num_ffn_ranks={config.num_ffn_ranks} for num_attention_ranks={count}: use fewer FFN "
                "ranks, each of which may have several processes (tensor or expert parallel)."
            )


def check_on(needed: Iterable[tuple[str, object, str]], options: EngineArgs | Options, config: Config) -> None:
    """ValueError for the first of ``needed`` (option, value, what to do instead) that has another value."""
    for option, value, instead in needed:
        found = getattr(options, option)
        if (found or None) != (value or None):  # vLLM leaves switches that nobody set at None
            raise ValueError(f"AFD's {config.role} role needs {option}={value}, found {found}: {instead}.")


def check_block(spec: MoE, config: Config) -> None:
    """ValueError for parts of an FFN that attention cannot keep, since the model's block is exchanged as a whole."""
    keep.check_block(spec, keep.Keep.of(config))


def check_kernels(quantization: str | None, *, amx: bool) -> None:
    """ValueError on a processor for experts that vLLM computes there only with AMX; ``quantization`` as vLLM has it.

    Said to both roles: the attention role loads no experts, and would wait for an FFN role that cannot.
    """
    if quantization is not None and "mxfp4" in quantization and not amx:
        raise ValueError(
            f"vLLM has no kernel for {quantization} experts on a processor without AMX, and this has none: serve a "
            "checkpoint with bfloat16 experts, or serve this one on GPUs."
        )


def check_speculation(found: SpeculativeConfig | None) -> None:
    """ValueError for a drafter that was not compared with native vLLM."""
    if found is not None and found.method not in features.COMPARED_METHODS:
        raise ValueError(
            f"AFD needs speculative decoding by {' or '.join(features.COMPARED_METHODS)}, found {found.method}: choose "
            "one of these or leave speculative decoding out, other drafters were not compared with native vLLM."
        )


def check_ranks(parallel: ParallelConfig, config: Config) -> None:
    """ValueError unless this server's ranks lie within the number of ranks of its role.

    Each tensor-parallel process is an attention rank; on the FFN role they are one rank together.
    """
    if config.role == "attention":
        ranks = parallel.data_parallel_size * parallel.prefill_context_parallel_size * parallel.tensor_parallel_size
        count, other = config.num_attention_ranks, ", rank or its data and tensor parallel sizes"
    else:
        ranks, count, other = 1, config.num_ffn_ranks, " or rank"
    if config.rank + ranks > count:
        raise ValueError(
            f"Expected the ranks of this {config.role} server within num_{config.role}_ranks={count}, found "
            f"{ranks} ranks from rank {config.rank}: correct num_{config.role}_ranks{other}."
        )
