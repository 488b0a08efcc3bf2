"""What every transport checks about a call, so that all refuse the same mistakes in the same words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from afd_connectors.shape import DTYPE_BYTES, Shape
from afd_connectors.step import Step

if TYPE_CHECKING:
    from torch import Tensor

DTYPE_CODES = {name: code for code, name in enumerate(DTYPE_BYTES, start=1)}
DTYPE_NAMES = {code: name for name, code in DTYPE_CODES.items()}


_names: dict[object, str] = {}  # of dtypes, because making the words takes longer than the rest of a check


def dtype_name(tensor: Tensor) -> str:
    """ "float32" and so on, without importing torch."""
    name = _names.get(tensor.dtype)
    if name is None:
        name = _names[tensor.dtype] = str(tensor.dtype).removeprefix("torch.")
    return name


def router_code(router: Tensor | None) -> int:
    """The code of the logits' dtype in frames, 0 for no logits."""
    if router is None:
        return 0
    code = DTYPE_CODES.get(dtype_name(router))
    if code is None:
        raise ValueError(f"router logits must be one of {', '.join(DTYPE_CODES)}, found {dtype_name(router)}.")
    return code


def check_begin(step: Step, previous: Step | None, shape: Shape) -> None:
    """ValueError unless `step` comes after `previous` and fits the shape."""
    if previous is not None and step.seq <= previous.seq:
        raise ValueError(f"a step's seq must be larger than the last one's {previous.seq}, found {step.seq}.")
    problem = step_problem(step, shape)
    if problem is not None:
        raise ValueError(f"{problem}.")


def step_problem(step: Step, shape: Shape) -> str | None:
    """How a step exceeds the shape, None when it fits."""
    if len(step.tokens) > shape.stages:
        return f"step {step.seq} has {len(step.tokens)} stages, the connector takes {shape.stages}"
    if max(step.tokens) > shape.tokens:
        return f"step {step.seq} has {max(step.tokens)} rows in a stage, the connector takes {shape.tokens}"
    return None


def check_send(
    step: Step,
    begun: Step | None,
    layer: int,
    stage: int,
    hidden: Tensor,
    router: Tensor | None,
    shape: Shape,
    pending: Mapping[int, object],
) -> None:
    """ValueError unless the exchange belongs to the step that was begun and its tensors fit."""
    if (
        step is begun
        and 0 <= stage < len(step.tokens)
        and 0 <= layer < shape.layers
        and stage not in pending
        and router is None
        and hidden.shape == (step.tokens[stage], shape.hidden)
        and _names.get(hidden.dtype) == shape.dtype
    ):
        return  # at once what nearly always holds; below is said what does not
    if step is not begun and (begun is None or step.seq != begun.seq):
        raise ValueError(f"send needs the step that was begun, {begun}, found {step}; call begin first.")
    if not 0 <= stage < len(step.tokens) or not 0 <= layer < shape.layers:
        raise ValueError(
            f"layer and stage must lie below {shape.layers} and {len(step.tokens)}, found {layer} and {stage}."
        )
    if stage in pending:
        raise ValueError(f"stage {stage} of step {step.seq} has an exchange without answer; recv it first.")
    rows = step.tokens[stage]
    _check_tensor("hidden", hidden, rows, shape.hidden, shape.dtype)
    if router is not None:
        if not shape.router:
            raise ValueError("router logits were given, the connector was built without; set router in the shape.")
        _check_tensor("router", router, rows, shape.router, None)


def check_recv(step: Step, layer: int, stage: int, out: Tensor, shape: Shape, pending: Mapping[int, int]) -> None:
    """ValueError unless `out` fits and exactly this exchange was sent and not received yet."""
    if (
        pending.get(stage) == layer
        and out.shape == (step.tokens[stage], shape.hidden)
        and _names.get(out.dtype) == shape.dtype
    ):
        return  # as in check_send
    if pending.get(stage) != layer:
        raise ValueError(
            f"recv of layer {layer} stage {stage} of step {step.seq} needs a send of the same before it, "
            f"found {pending.get(stage, 'none')}."
        )
    _check_tensor("out", out, step.tokens[stage], shape.hidden, shape.dtype)


def _check_tensor(name: str, tensor: Tensor, rows: int, width: int, dtype: str | None) -> None:
    if tensor.shape != (rows, width):
        raise ValueError(f"{name} must be [{rows}, {width}], found {list(tensor.shape)}.")
    if dtype is not None and _names.get(tensor.dtype) != dtype and dtype_name(tensor) != dtype:
        raise ValueError(f"{name} must be {dtype}, found {dtype_name(tensor)}.")
