"""On CUDA the attention role's graph mode is AFD's where the user left it open, and refused where it cannot work."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from vllm.config import CompilationConfig
from vllm.config.compilation import CompilationMode, CUDAGraphMode

from afd_workers import graph_mode


def settled(enforce_eager: bool = False, compilation_config: CompilationConfig | None = None) -> SimpleNamespace:
    args = SimpleNamespace(enforce_eager=enforce_eager, compilation_config=compilation_config or CompilationConfig())
    given = args.compilation_config
    graph_mode.settle(args)
    if args.compilation_config is not given:
        assert given.cudagraph_mode is None or given.cudagraph_mode is args.compilation_config.cudagraph_mode
    return args


def test_left_open_it_is_whole_decode_steps_uncompiled() -> None:
    chosen = settled().compilation_config
    assert chosen.cudagraph_mode is CUDAGraphMode.FULL_DECODE_ONLY
    assert chosen.mode is CompilationMode.NONE


def test_what_the_user_chose_stays() -> None:
    chosen = settled(compilation_config=CompilationConfig(mode=3, cudagraph_mode="NONE")).compilation_config
    assert (chosen.mode, chosen.cudagraph_mode) == (CompilationMode.VLLM_COMPILE, CUDAGraphMode.NONE)
    assert settled(enforce_eager=True).compilation_config.cudagraph_mode is None


def test_compiling_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "afd.workers"):
        for mode in (None, 0):
            settled(compilation_config=CompilationConfig(mode=mode))
        assert not caplog.records
        settled(compilation_config=CompilationConfig(mode=3))
    [record] = caplog.records
    assert "(compilation mode 3); its tokens equal those of native compiled vLLM where both have" in record.getMessage()


@pytest.mark.parametrize("mode", ["FULL", "PIECEWISE", "FULL_AND_PIECEWISE"])
def test_modes_that_the_ffn_role_cannot_follow_are_named(mode: str) -> None:
    sentence = rf"needs cudagraph_mode=FULL_DECODE_ONLY or NONE on this device, found {mode}: "
    with pytest.raises(ValueError, match=sentence):
        settled(compilation_config=CompilationConfig(cudagraph_mode=mode))
