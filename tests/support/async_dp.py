"""Runs two data-parallel ranks of a whole model under a simulated async section and says what they did, as JSON.

    python -m tests.support.async_dp MODEL < PROMPTS

Async DP itself runs on Ascend only; its patches of vLLM are the same everywhere. Each rank holds a whole model here.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from typing import Any

SECTION = {"afd": {"role": "attention", "async_dp": True, "num_attention_ranks": 2}}


class Probe:
    """A worker extension that watches forward passes from within the engine's process."""

    def watch(self) -> bool:
        """Record the DP metadata of every forward pass from now on."""
        from vllm.forward_context import get_forward_context

        self.seen: list[bool] = []
        self.model_runner.model.register_forward_pre_hook(  # type: ignore[attr-defined]
            lambda *_: self.seen.append(get_forward_context().dp_metadata is None)
        )
        return True

    def report(self) -> dict[str, Any]:
        """What this rank is and saw."""
        from vllm.v1.engine.core import EngineCore

        callers = (frame.frame.f_locals.get("self") for frame in inspect.stack(0))
        engine = next(caller for caller in callers if isinstance(caller, EngineCore))
        parallel = self.vllm_config.parallel_config  # type: ignore[attr-defined]
        return {
            "engine": type(engine).__name__,
            "rank": engine.engine_index,
            "size": parallel.data_parallel_size,
            "index": parallel.data_parallel_index,
            "passes": len(self.seen),
            "without_metadata": all(self.seen),
        }


async def run(model: str, prompts: list[list[int]]) -> dict[str, Any]:
    """Serves all prompts at once from both ranks."""
    from vllm import SamplingParams, TokensPrompt
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine import utils
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    waves: list[bool] = []
    coordinator = utils.DPCoordinator
    utils.DPCoordinator = lambda *args, **kwargs: (
        waves.append(kwargs["enable_wave_coordination"]), coordinator(*args, **kwargs)
    )[1]  # fmt: skip
    config = AsyncEngineArgs(
        model=model, data_parallel_size=2, enforce_eager=True, dtype="bfloat16", max_model_len=512,
        kv_cache_memory_bytes=64 << 20, worker_extension_cls="tests.support.async_dp.Probe",
    ).create_engine_config()  # fmt: skip
    config.additional_config = SECTION
    llm = AsyncLLM(config, UniProcExecutor, log_stats=False)
    try:
        client = llm.engine_core
        woken: list[bytes] = []
        real = client.first_req_send_socket.send
        client.first_req_send_socket = type("Socket", (), {"send": lambda _, m: (woken.append(m), real(m))[1]})()
        await llm.collective_rpc("watch")
        sampling = SamplingParams(
            temperature=0, min_tokens=8, max_tokens=8, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )

        async def one(number: int, prompt: list[int]) -> list[int]:
            outputs = llm.generate(
                TokensPrompt(prompt_token_ids=prompt), sampling, str(number), data_parallel_rank=number % 2
            )
            return [list(output.outputs[0].token_ids) async for output in outputs][-1]

        tokens = await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts)))
        ranks = await asyncio.gather(*(
            client._call_utility_async("collective_rpc", "report", None, (), None, engine=engine)
            for engine in client.core_engines
        ))  # fmt: skip
        return {
            "tokens": tokens, "waves": waves, "woken": len(woken), "running": client.dp_engines_running(),
            "ranks": [rank for [rank] in ranks],
        }  # fmt: skip
    finally:
        llm.shutdown()


def main() -> None:
    """Patches this process as vLLM's plugin loader would and prints one line."""
    from afd_compat import install, registry

    install.install(registry.declared())
    print(json.dumps(asyncio.run(run(sys.argv[1], json.load(sys.stdin)))), flush=True)


if __name__ == "__main__":
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # keeps the executor inside each engine's process
    main()
