"""Turns the "afd" section into vLLM's own choices: the role's worker class and the few options that a role fixes."""

from __future__ import annotations

import copy
import logging
import os
from typing import TYPE_CHECKING

from afd_workers import features, graph_mode, group_ports, links, logs, platform, refusals, routing
from afd_workers.health import board

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs

    from afd_compat.config import Config
    from afd_connectors.layout import Role

log = logging.getLogger("afd.workers")

#: An FFN rank has no KV cache; naming a size keeps vLLM from reserving a share of the memory for one.
_NO_KV_CACHE_BYTES = 1 << 20


class Roles:
    """Called around ``EngineArgs.create_engine_config`` when, and only when, an "afd" section is present."""

    def prepare(self, engine_args: EngineArgs, config: Config) -> EngineArgs:
        """A copy of ``engine_args`` that starts ``config.role``; ValueError for what this version cannot do."""
        from vllm.platforms import current_platform

        from afd_connectors import registry
        from afd_connectors.address import one_host
        from afd_models import checkpoint

        logs.enable()
        if not engine_args.hf_overrides:  # they may name another family; finish looks at what came of them
            checkpoint.refuse(engine_args.model)
        routing.check(routing.registered())
        if routing.simulated() != routing.BALANCED:  # of that one the plugin has warned
            routing.warn()
        device = current_platform.device_type
        chosen = platform.choose(device)
        config.check_device(device)
        connector = registry.resolve(config.connector, device)
        connector.check_options(config.connector_extra_config)
        refusals.check(engine_args, config)
        refusals.check_connector(connector, config)
        refusals.check_platform(chosen, engine_args, config)
        if config.role == "attention":
            board.offer(config.num_attention_ranks)  # before vLLM starts the processes that write on it
        if one_host(links.settings(config)):
            _surround(chosen.one_host)
        prepared = copy.copy(engine_args)
        if prepared.worker_cls == "auto":
            prepared.worker_cls = chosen.workers[config.role]
        else:
            log.warning("worker_cls is %s as given, not AFD's own for the %s role.", prepared.worker_cls, config.role)
        if chosen.eager_only and not prepared.enforce_eager:
            log.info("AFD runs the %s role eagerly on %s (as with --enforce-eager).", config.role, device)
            prepared.enforce_eager = True
        elif config.role == "attention" and not chosen.eager_only:
            graph_mode.settle(prepared)
        _settle(prepared, config.role)
        return prepared

    def finish(self, vllm_config: VllmConfig, config: Config) -> None:
        """ValueError unless the model is of a declared family and its ranks fit the layout; settles their ports."""
        from vllm.platforms import current_platform

        from afd_models.families import find

        _, spec = find(vllm_config.model_config.architectures)
        refusals.check_block(spec, config)
        if current_platform.device_type == "cpu":
            import torch

            refusals.check_kernels(vllm_config.model_config.quantization, amx=torch.cpu._is_amx_tile_supported())
        if platform.choose(current_platform.device_type).runner_v2 and not vllm_config.use_v2_model_runner:
            raise ValueError(
                "AFD needs vLLM's second model runner on this device, found the first: set VLLM_USE_V2_MODEL_RUNNER=1 "
                "and leave out what only the first one can do."
            )
        refusals.check_speculation(vllm_config.speculative_config)
        refusals.check_ranks(vllm_config.parallel_config, config)
        group_ports.settle(vllm_config.parallel_config)


def _surround(environment: Mapping[str, str]) -> None:
    """For this process and those that vLLM starts from it, unless the user has set it."""
    for name, value in environment.items():
        os.environ.setdefault(name, value)


def _settle(options: EngineArgs, role: Role) -> None:
    """Options that a role fixes; both may be given those of either."""
    if role == "attention":
        options.enable_expert_parallel = False  # it has no experts
        return
    options.enforce_eager = True  # where there are graphs, the role captures its own
    # vLLM's own all-reduce kernel registers what its graphs hold around vLLM's own captures only.
    options.disable_custom_all_reduce = True
    options.enable_prefix_caching = False  # vLLM's scheduler cannot cache prefixes without KV groups
    options.kv_cache_memory_bytes = _NO_KV_CACHE_BYTES
    for option, value in features.ATTENTION_ONLY.items():
        setattr(options, option, value)
