"""Lets attention ranks of asynchronous data parallelism run each at its own pace: no waves and no wake-ups."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final, cast

from afd_compat.config import is_async
from afd_compat.declaration import Native, patch
from afd_compat.patches.versions import TESTED
from afd_compat.rebound import rebound

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.engine.core_client import DPAsyncMPClient

_UNTIL: Final = "vLLM lets MoE ranks of data parallelism run on their own"


def async_attention(*_args: object, **kwargs: object) -> bool:
    """async_dp, attention role"""
    return is_async(getattr(kwargs.get("vllm_config"), "additional_config", None), "attention")


def async_launch(vllm_config: object = None, *_: object, **__: object) -> bool:
    """async_dp"""
    return is_async(getattr(vllm_config, "additional_config", None))


def async_client(client: object = None, *_: object, **__: object) -> bool:
    """async_dp"""
    return is_async(getattr(getattr(client, "vllm_config", None), "additional_config", None))


@patch(
    "vllm.v1.engine.core:EngineCoreProc.run_engine_core",
    vllm=TESTED,
    how="wrap",
    when="import",
    processes=("engine",),
    active=async_attention,
    effect="Async DP: each attention rank runs EngineCoreProc, not DPEngineCoreProc, as ranks of dense models do.",
    until=_UNTIL,
    pin={  # what it looks up inside decides
        "0.30": "body:0064a5a9bbb94be8",
        "0.31": "body:f68a8664f8fd7f54",
        "0.32": "body:032d5aecddc8b634",
        "0.33": "body:fef9b575614c52d4",
    },
)
def run_alone(native: Native, *args: object, **kwargs: object) -> object:
    from vllm.v1.engine import core

    def independent(*inner: object, vllm_config: VllmConfig, **rest: object) -> object:
        parallel = vllm_config.parallel_config
        parallel.reconfigure_for_independent_dp_rank()  # keeps data_parallel_index, which AFD's ranks come from
        return core.EngineCoreProc(*inner, vllm_config=vllm_config, engine_index=parallel.data_parallel_index, **rest)

    with rebound(core, DPEngineCoreProc=independent):
        return native(*args, **kwargs)


def start_engine(*args: object, **kwargs: object) -> None:
    """The target of an engine's process: a pickled native one would reach a spawned child before any patch does.

    A headless server starts engines without a launch; those have the patch under fork, and spawned ones do not.
    """
    from afd_compat.install import install
    from afd_compat.registry import declared

    install(declared())
    from vllm.v1.engine.core import EngineCoreProc

    # A forked child finds this very function in the place of the native one, as the launch is under way in it too.
    found = vars(EngineCoreProc)["run_engine_core"]
    if found is _TARGET:
        EngineCoreProc.run_engine_core = _replaced.pop()
    EngineCoreProc.run_engine_core(*args, **kwargs)


_TARGET = staticmethod(start_engine)
_replaced: list[object] = []


@patch(
    "vllm.v1.engine.utils:launch_core_engines",
    vllm=TESTED,
    how="wrap",
    when="import",
    processes=("api",),
    active=async_launch,
    effect="Async DP: the coordinator balances load but coordinates no waves, and ranks need not agree to start.",
    until=_UNTIL,
    pin={
        "0.30": "body:b97544822d9969b5",
        "0.31": "body:7f14e0e22e909847",
        "0.32": "body:c3e65c7da528ffdf",
        "0.33": "body:2ef0c25fae6b37d1",
    },
)
@contextmanager
def launch_without_waves(native: Native, *args: object, **kwargs: object) -> Iterator[object]:
    from vllm.v1.engine import core, utils

    coordinator, wait = utils.DPCoordinator, utils.wait_for_engine_startup

    def without_waves(*inner: object, **rest: object) -> object:
        return coordinator(*inner, **{**rest, "enable_wave_coordination": False})

    def wait_for_each(*inner: object, **rest: object) -> object:
        call = inspect.signature(wait).bind(*inner, **rest)
        call.arguments["coordinated_dp"] = False  # else the engines' sizes are set back to the group's
        return wait(*call.args, **call.kwargs)

    launch = cast("AbstractContextManager[object]", native(*args, **kwargs))
    _replaced[:] = [vars(core.EngineCoreProc)["run_engine_core"]]
    with (
        rebound(utils, DPCoordinator=without_waves, wait_for_engine_startup=wait_for_each),
        rebound(core.EngineCoreProc, run_engine_core=_TARGET),
        launch as launched,
    ):
        yield launched


@patch(
    "vllm.v1.engine.core_client:DPAsyncMPClient.add_request_async",
    vllm=TESTED,
    how="wrap",
    when="import",
    processes=("api",),
    active=async_client,
    effect="Async DP: a request wakes no other rank; no FIRST_REQ is sent (vLLM 0.33 sends none at all).",
    until="vLLM 0.33 is the oldest one in range",
    pin={
        "0.30": "body:2e7f6ed19e7584a6",
        "0.31": "body:2e7f6ed19e7584a6",
        "0.32": "body:2e7f6ed19e7584a6",
        "0.33": "body:e26ad6528e171c0d",
    },
)
async def add_without_waking(native: Native, client: DPAsyncMPClient, *args: object, **kwargs: object) -> object:
    client.engines_running = True  # who runs already need not be woken
    try:
        return await cast("Awaitable[object]", native(client, *args, **kwargs))
    finally:
        client.engines_running = False  # what it always is without waves
