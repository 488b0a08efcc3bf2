"""What an FFN server needs from the engine core, reached through what vLLM offers to workers."""

from __future__ import annotations

from typing import Final

from afd_compat.declaration import Process, seam
from afd_compat.patches.versions import TESTED

_ENGINE: Final[tuple[Process, ...]] = ("engine",)

init = seam(
    "vllm.v1.engine.core:EngineCore.__init__",
    vllm=TESTED,
    native="the worker's get_supported_tasks() -> ()",
    processes=_ENGINE,
    effect="FFN: no generation route is registered, so the native scheduler has nothing to do.",
)

initialize_kv_caches = seam(
    "vllm.v1.engine.core:EngineCore._initialize_kv_caches",
    vllm=TESTED,
    native="the worker's get_kv_cache_spec() == {}",
    processes=_ENGINE,
    effect="FFN: no layer asks for KV cache, so none is allocated and memory is not profiled.",
)

shutdown = seam(
    "vllm.v1.engine.core:EngineCore.shutdown",
    vllm=TESTED,
    native="the end of the worker process, and Worker.shutdown() where vLLM grants the time",
    processes=_ENGINE,
    effect="FFN: the worker loop ends with its process and its peers see the connection close.",
)

run_busy_loop = seam(
    "vllm.v1.engine.core:EngineCoreProc.run_busy_loop",
    vllm=TESTED,
    native="a thread that the worker starts in compile_or_warm_up_model()",
    processes=_ENGINE,
    effect="FFN: the worker serves beside the idle native loop and ends its process on failure.",
)

run_dp_busy_loop = seam(
    "vllm.v1.engine.core:DPEngineCoreProc.run_busy_loop",
    vllm=TESTED,
    native="a thread that the worker starts in compile_or_warm_up_model()",
    processes=_ENGINE,
    effect="FFN: as for EngineCoreProc; the worker's execute_dummy_batch() does nothing.",
)
