"""Which of vLLM's graph modes the attention role runs in where exchanges can be captured."""

from __future__ import annotations

import copy
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.engine.arg_utils import EngineArgs

log = logging.getLogger("afd.workers")

MODE = "FULL_DECODE_ONLY"
_WORKING = (MODE, "NONE")


def settle(options: EngineArgs) -> None:
    """Chooses MODE, uncompiled, where the user left both open; ValueError for a mode that does not work.

    vLLM's own default would capture parts of a step, of which the FFN role is not told when they run.
    """
    from vllm.config.compilation import CompilationMode, CUDAGraphMode

    if options.enforce_eager:
        return
    given = options.compilation_config.cudagraph_mode
    if given is not None and given.name not in _WORKING:
        raise ValueError(
            f"AFD needs cudagraph_mode={MODE} or NONE on this device, found {given.name}: the FFN role cannot follow "
            "other modes, leave it out or set one of the two."
        )
    chosen = options.compilation_config = copy.deepcopy(options.compilation_config)
    if given is None:
        chosen.cudagraph_mode = CUDAGraphMode[MODE]
        log.info("AFD runs the attention role with cudagraph_mode %s.", MODE)
    if chosen.mode is None:
        chosen.mode = CompilationMode.NONE
    elif chosen.mode != CompilationMode.NONE:
        log.warning(
            "AFD compiles the attention role as asked (compilation mode %d); its tokens equal those of native compiled "
            'vLLM where both have custom_ops ["all"] and inductor_compile_config {"emulate_precision_casts": true} '
            "(docs/benchmarks/gpu.md).",
            chosen.mode,
        )
