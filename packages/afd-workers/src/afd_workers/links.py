"""Opens the port of one worker: what vLLM's config says, put into the engine-free values that connectors take."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from afd_compat.config import Config
from afd_connectors import registry
from afd_connectors.facts import Facts
from afd_connectors.layout import Layout, Role, role_rank
from afd_connectors.settings import Settings
from afd_connectors.shape import Shape
from afd_connectors.step import MAX_STAGES
from afd_workers import __version__, routing

if TYPE_CHECKING:
    from vllm.config import ModelConfig, ParallelConfig, VllmConfig

    from afd_connectors.ports import Connector
    from afd_models.shares import Rows
    from afd_models.stages import Stage

log = logging.getLogger("afd.workers")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a worker stands inside its server; all zero-based, ``tp_size`` and ``pcp_size`` at least 1.

    dp_rank: the global one, over all servers of one data-parallel deployment.
    """

    dp_rank: int
    tp_rank: int = 0
    tp_size: int = 1
    pcp_rank: int = 0
    pcp_size: int = 1


def placement(parallel: ParallelConfig) -> Placement:
    """Where this attention worker stands; to be asked once its parallel groups are there."""
    from vllm.distributed.parallel_state import get_pcp_group, get_tp_group

    tensor, context = get_tp_group(), get_pcp_group()
    return Placement(
        dp_rank=parallel.data_parallel_index,
        tp_rank=tensor.rank_in_group,
        tp_size=tensor.world_size,
        pcp_rank=context.rank_in_group,
        pcp_size=context.world_size,
    )


def rows(placement: Placement, layout: Layout) -> Rows:
    """Which rows an attention worker exchanges of those that its tensor-parallel group holds."""
    from afd_models.shares import AllRows, FirstRows, SharedRows

    if placement.tp_size == 1:
        return AllRows()
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    if one_ffn_rank(placement, layout):
        # On devices vLLM's own communicator, whose calls graphs can hold.
        device = group.device_communicator if group.device.type != "cpu" else None
        return FirstRows(placement.tp_rank, group.broadcast if device is None else device.broadcast)
    return SharedRows(placement.tp_rank, placement.tp_size, lambda own: group.all_gather(own, dim=0))


def one_ffn_rank(placement: Placement, layout: Layout) -> bool:
    """Whether all ranks of a tensor-parallel attention group exchange with the same single FFN rank."""
    first = layout.rank - placement.tp_rank
    ranks = (replace(layout, rank=rank) for rank in range(first, first + placement.tp_size))
    return len({peer for each in ranks for peer in each.peers}) == 1


def section(vllm_config: VllmConfig) -> Config:
    """The parsed "afd" section; ValueError when an AFD worker was started without one."""
    config = Config.from_additional_config(vllm_config.additional_config)
    if config is None:
        raise ValueError(
            'Expected --additional-config \'{"afd": {"role": ...}}\' for an AFD worker, found no "afd" section: '
            "add it, or leave worker_cls on auto."
        )
    return config


def described(vllm_config: VllmConfig) -> Mapping[str, object]:
    """The model's config as it was given: to be asked before the model is built, since vLLM's models write into it."""
    given: Mapping[str, object] = vllm_config.model_config.hf_config.to_dict()
    return given


def settings(config: Config) -> Settings:
    """What of the "afd" section concerns connectors."""
    return Settings(
        host=config.host,
        port=config.port,
        timeout_s=config.timeout_s,
        recovery_timeout_s=config.recovery_timeout_s,
        join_timeout_s=config.join_timeout_s,
        secret=config.secret,
        extra=config.connector_extra_config,
    )


def make_connector(
    vllm_config: VllmConfig,
    config: Config,
    placement: Placement,
    stages: tuple[Stage, ...],
    device: str,
    description: Mapping[str, object],
) -> Connector:
    """The connector of one worker, not yet opened, for a model with ``stages`` on torch device type ``device``.

    description: see `described`.
    """
    model_config = vllm_config.model_config
    rank = config.rank + role_rank(
        placement.dp_rank,
        placement.pcp_rank,
        placement.tp_rank,
        pcp_size=placement.pcp_size,
        tp_size=placement.tp_size,
    )
    layout = Layout(config.role, rank, config.num_attention_ranks, config.num_ffn_ranks)
    shape = Shape(
        tokens=vllm_config.scheduler_config.max_num_batched_tokens,
        hidden=model_config.get_hidden_size(),
        dtype=str(model_config.dtype).removeprefix("torch."),
        layers=max(stage.layer for stage in stages) + 1,
        stages=MAX_STAGES if vllm_config.parallel_config.use_ubatching else 1,
        router=model_config.get_num_experts() if config.compute_gate_on_attention else 0,
    )
    given = settings(config)
    facts = _facts(model_config, config, shape, description)
    kind = _kind(config, device, shape, given, vllm_config.parallel_config.tensor_parallel_size)
    connector = kind(layout, shape, facts, given)
    log.info("AFD %s rank %d: connector %s, %s", config.role, rank, connector.name, shape)
    return connector


def _kind(config: Config, device: str, shape: Shape, given: Settings, tensor: int) -> type[Connector]:
    """The connector by name; of those that "auto" may pick, the one for any hosts where the nearer one does not fit.

    tensor: processes of this role's tensor-parallel group.
    """
    found = registry.resolve(config.connector, device, given)
    if config.connector != "auto":
        return found
    anywhere = registry.resolve(config.connector, device)
    obstacle = None if found is anywhere else _obstacle(found, shape, tensor)
    if obstacle is None:
        return found
    log.info("connector 'auto' chooses %r and not %r: it %s", anywhere.name, found.name, obstacle)
    return anywhere


def _obstacle(found: type[Connector], shape: Shape, tensor: int) -> str | None:
    """Why not this one, None when nothing is against it; both roles must find the same.

    Neither knows how many processes a rank of the other has, so where only one is tensor parallel they do not.
    """
    if shape.router and "router" not in found.features:
        return "carries no router logits"
    if tensor > 1 and "graph" in found.features:
        return (
            "was not tried in graphs that hold a tensor-parallel group's own transfers too; where the other role is "
            "not tensor parallel it does not know of this, so name the same connector on both roles"
        )
    return found.misfit(shape)


def _facts(model_config: ModelConfig, config: Config, shape: Shape, description: Mapping[str, object]) -> Facts:
    import vllm

    from afd_models.digest import model_digest

    return Facts(
        afd_version=__version__,
        vllm_version=routing.engine_version(vllm.__version__),
        model_digest=model_digest(description, _folder(model_config)),
        dtype=shape.dtype,
        hidden=shape.hidden,
        layers=shape.layers,
        tokens=shape.tokens,
        router=shape.router,
        gate=_holder(config.compute_gate_on_attention),
        shared=_holder(config.shared_experts_on_attention),
        dense=_holder(config.dense_layers_on_attention),
        stages=shape.stages,
        graph_sizes=(),
        num_attention=config.num_attention_ranks,
        num_ffn=config.num_ffn_ranks,
    )


def _holder(on_attention: bool) -> Role:
    return "attention" if on_attention else "ffn"


def _folder(model_config: ModelConfig) -> Path | None:
    """The checkpoint's folder: as given, or where the hub client keeps what it downloaded for this revision."""
    given = Path(model_config.model)
    if given.is_dir():
        return given
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model_config.model, revision=model_config.revision, local_files_only=True))
    except (LocalEntryNotFoundError, HfHubHTTPError, ValueError):
        log.warning("No local copy of %s: the handshake compares its config only.", model_config.model)
        return None
