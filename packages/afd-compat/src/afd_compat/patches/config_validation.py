"""Turns `additional_config["afd"]` into vLLM's own settings, where vLLM builds its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from afd_compat.config import Config, is_configured
from afd_compat.declaration import Native, patch
from afd_compat.install import require
from afd_compat.patches.versions import TESTED
from afd_compat.policy import current

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs


#: What vLLM's check of microbatching accepts; AFD roles exchange over their own connector and never load it.
_ACCEPTED: Final = "deepep_low_latency"


def configured(engine_args: object = None, *_: object, **__: object) -> bool:
    """`additional_config` has "afd"."""
    return is_configured(getattr(engine_args, "additional_config", None))


def overlapping(vllm_config: object = None, *_: object, **__: object) -> bool:
    """`additional_config` has "afd" and microbatching is on."""
    if not is_configured(getattr(vllm_config, "additional_config", None)):
        return False
    return bool(cast("VllmConfig", vllm_config).parallel_config.use_ubatching)


@patch(
    "vllm.engine.arg_utils:EngineArgs.create_engine_config",
    vllm=TESTED,
    how="wrap",
    when="import",
    processes=("api",),
    active=configured,
    effect="Checks the AFD configuration and selects the role's worker where the user left it on auto; with dual-batch "
    "overlap the ubatch backend check of the native call passes, see VllmConfig.__post_init__.",
    until="vLLM lets a plugin complete the engine arguments",
    pin="sig:13e6441befa5ca9b",
    guard=True,
)
def choose_role(native: Native, engine_args: EngineArgs, *args: object, **kwargs: object) -> object:
    require()
    config = Config.from_additional_config(engine_args.additional_config)
    assert config is not None, "the patch is active only where there is a configuration"
    policy = current()
    vllm_config = cast("VllmConfig", native(policy.prepare(engine_args, config), *args, **kwargs))
    policy.finish(vllm_config, config)
    return vllm_config


@patch(
    "vllm.config.vllm:VllmConfig.__post_init__",
    vllm=TESTED,
    how="wrap",
    when="import",
    processes=("api", "engine", "worker"),
    active=overlapping,
    effect="Presents an all2all backend that the check of microbatching accepts while the configuration is validated "
    "or validated again, then restores the one that was there.",
    until="vLLM asks for an all2all backend only where there is expert parallelism",
    pin="sig:7e8f5d53b7df2b55",
    guard=True,
)
def accept_microbatches(native: Native, vllm_config: VllmConfig) -> object:
    require()
    parallel = vllm_config.parallel_config
    given = parallel.all2all_backend
    parallel.all2all_backend = _ACCEPTED
    try:
        return native(vllm_config)
    finally:
        parallel.all2all_backend = given
