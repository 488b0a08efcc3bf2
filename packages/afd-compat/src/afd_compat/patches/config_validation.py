"""Turns `additional_config["afd"]` into vLLM's own settings, where vLLM builds its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from afd_compat.config import Config, is_configured
from afd_compat.declaration import Native, patch
from afd_compat.install import require
from afd_compat.patches.versions import TESTED
from afd_compat.policy import current

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs


def configured(engine_args: object = None, *_: object, **__: object) -> bool:
    """`additional_config` has "afd"."""
    return is_configured(getattr(engine_args, "additional_config", None))


@patch(
    "vllm.engine.arg_utils:EngineArgs.create_engine_config",
    vllm=TESTED,
    how="wrap",
    when="import",
    processes=("api",),
    active=configured,
    effect="Checks the AFD configuration and selects the role's worker where the user left it on auto.",
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
