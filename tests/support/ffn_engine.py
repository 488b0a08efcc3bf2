"""Starts vLLM's own engine core in the FFN role in this process, stops it, and says what it did, as JSON.

python -m tests.support.ffn_engine MODEL PORT
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from tests.support.offline import ENV
from tests.support.sockets import listens


def main(model: str, port: int) -> dict[str, Any]:
    """What each row of engine_core is about, before and after the engine's end."""
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.core import DPEngineCoreProc, EngineCore, EngineCoreProc
    from vllm.v1.executor.abstract import Executor
    from vllm.v1.worker.cpu_worker import CPUWorker

    from afd_workers.plugin import register

    register()
    profiled: list[bool] = []
    native = CPUWorker.determine_available_memory
    CPUWorker.determine_available_memory = lambda self: (profiled.append(True), native(self))[1]
    config: VllmConfig = EngineArgs(
        model=model, enforce_eager=True, dtype="bfloat16", max_model_len=512,
        additional_config={"afd": {"role": "ffn", "port": port, "connector": "tcp"}},
    ).create_engine_config()  # fmt: skip
    engine = EngineCore(config, Executor.get_class(config), log_stats=False)
    worker = engine.model_executor.driver_worker.worker
    serving = {thread.name for thread in threading.enumerate()}
    report: dict[str, Any] = {
        "engine": type(engine).__name__,
        "worker": type(worker).__name__,
        "tasks": list(engine.get_supported_tasks()),
        "spec": len(worker.get_kv_cache_spec()),
        "blocks": config.cache_config.num_gpu_blocks,
        "groups": len(engine.scheduler.kv_cache_config.kv_cache_groups),
        "profiled": len(profiled),
        "unfinished": engine.scheduler.has_unfinished_requests(),
        "dummy": worker.execute_dummy_batch(),
        "listens": listens(os.getpid(), port),
        "patched": [
            function.__qualname__
            for function in (
                EngineCore.__init__, EngineCore._initialize_kv_caches, EngineCore.shutdown,
                EngineCoreProc.run_busy_loop, DPEngineCoreProc.run_busy_loop,
            )
            if function.__code__.co_filename.find("afd_compat") >= 0
        ],
    }  # fmt: skip
    engine.shutdown()
    after = {thread.name for thread in threading.enumerate()}
    return {**report, "listens_after": listens(os.getpid(), port), "ended": sorted(serving - after)}


if __name__ == "__main__":
    os.environ.update(ENV)
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))), flush=True)
