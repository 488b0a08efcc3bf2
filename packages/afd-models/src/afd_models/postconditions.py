"""What must be true of a cut model, so that a changed vLLM is noticed at start-up and not in its tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afd_models.keep import NOTHING, Keep
from afd_models.stages import ffns
from afd_models.standins import Absent, Remote

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from afd_connectors.layout import Role
    from afd_models.spec import MoE
    from afd_models.stages import Stage


class CutError(RuntimeError):
    """A model was not cut as its declaration promises; the message lists everything that is wrong."""


def check(
    spec: MoE, role: Role, model: nn.Module, stages: tuple[Stage, ...], layers: int, keep: Keep = NOTHING
) -> None:
    """CutError unless ``model`` holds ``role``'s part of all ``layers`` decoder layers and nothing else."""
    local = [(layer, path, module) for layer, path, module in ffns(spec, model) if keep.dense and _dense(spec, module)]
    if keep.dense and not local:
        raise ValueError(
            f"dense_layers_on_attention needs a model with layers without experts, found none among the {layers} of "
            f"{spec.arch}: leave it out for this model."
        )
    wrong = [*_stages(stages, [layer for layer, _, _ in local], layers), *_local(role, local)]
    wrong += _attention(model, stages) if role == "attention" else _ffn(spec, model, stages, keep)
    if wrong:
        raise CutError(
            f"Expected {spec.arch} to be cut for the {role} role, found: {'; '.join(wrong)}. The declaration in "
            f"afd_models/families ({spec.module}) does not fit this vLLM: adapt it."
        )


def _dense(spec: MoE, module: nn.Module) -> bool:
    return not hasattr(module, spec.inner)


def _stages(stages: tuple[Stage, ...], local: list[int], layers: int) -> Iterable[str]:
    found = [stage.layer for stage in stages]
    if sorted(found + local) != list(range(layers)):
        but = f" but {local}" if local else ""
        yield f"FFN stages for layers {found} instead of 0 to {layers - 1}{but}"


def _local(role: Role, local: Iterable[tuple[int, str, nn.Module]]) -> Iterable[str]:
    """Dense FFNs that are attention's are native there and absent on the FFN role."""
    for _, path, module in local:
        if isinstance(module, Absent) != (role == "ffn") or isinstance(module, Remote):
            yield f"{path} is a {type(module).__name__} though attention keeps its dense layers"


def _attention(model: nn.Module, stages: tuple[Stage, ...]) -> Iterable[str]:
    for stage in stages:
        module = model.get_submodule(stage.path)
        if not isinstance(module, Remote):
            yield f"{stage.path} is a native {type(module).__name__}, not a stand-in"
        yield from (f"{stage.path} has a parameter {name}" for name, _ in module.named_parameters())
    yield from (
        f"{path} at {path!r} stands for a stage that is not a decoder layer's FFN"
        for path, module in model.named_modules()
        if isinstance(module, Remote) and path not in {stage.path for stage in stages}
    )


def _ffn(spec: MoE, model: nn.Module, stages: tuple[Stage, ...], keep: Keep) -> Iterable[str]:
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    roots = {stage.path.removesuffix(f".{spec.inner}") for stage in stages}
    for path, module in model.named_modules():
        if isinstance(module, AttentionLayerBase) and not isinstance(module, Absent):
            yield f"attention layer {path} was built"
    for name, _ in model.named_parameters():
        if not any(name.startswith(f"{root}.") for root in roots):
            yield f"parameter {name} lies outside the FFN stages"
    if keep.gate:
        held = (stage.path for stage in stages if stage.sparse and _gated(model.get_submodule(stage.path)))
        yield from (f"{path} calls a gate, which is attention's" for path in held)
    if keep.shared:
        names = [name for name, _ in model.named_parameters() if "shared_expert" in name]
        alone = (name for name in names if not spec.overlaps(name))
        yield from (f"there is a parameter {name}, which is attention's" for name in alone)


def _gated(experts: nn.Module) -> bool:
    return getattr(experts, "gate", None) is not None
