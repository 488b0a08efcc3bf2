"""Quantises the linear layers and experts of a toy as published quantised checkpoints do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 128
GROUP = 32
#: What MXFP4 can say of an element, beside its sign.
_SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
#: The order in which AWQ puts eight columns into one word, lowest bits first.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_NOT = ["lm_head", "re:.*mlp.gate$"]
Tensors = Mapping[str, "Tensor"]


@dataclass(frozen=True, slots=True)
class Method:
    """config: quantization_config of config.json. store: tensors by suffix of one weight [out, in].

    joined: of all experts of a layer instead, [experts, in, out]; whatever else the checkpoint has stays as it is.
    """

    config: Mapping[str, object]
    store: Callable[[Tensor], Tensors]
    joined: bool = False


def configuration(method: str, *, experts: bool = True) -> dict[str, object]:
    """quantization_config of config.json; without ``experts`` FFNs are named as left out."""
    config = dict(_method(method).config)
    if experts:
        return config
    if "ignore" in config:
        return {**config, "ignore": ["lm_head", "re:.*mlp.*"]}
    if method == "gptq":
        return {**config, "dynamic": {"-:.*mlp.*": {}}}
    return {**config, "modules_to_not_convert": ["mlp"]}


def quantise(tensors: Tensors, method: str, *, experts: bool = True) -> dict[str, Tensor]:
    """Projections as ``method`` stores them, without ``experts`` those of attention only; all else as it is."""
    chosen = _method(method)
    store = chosen.store
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if chosen.joined:
            parts = store(tensor.float()) if name.endswith("_proj") else {"": tensor}
            found |= {f"{name}{suffix}": part.contiguous() for suffix, part in parts.items()}
        elif name.endswith("_proj.weight") and (experts or ".self_attn." in name):
            stem = name.removesuffix("weight")
            found |= {f"{stem}{suffix}": part.contiguous() for suffix, part in store(tensor.float()).items()}
        else:
            found[name] = tensor
    return found


def _method(name: str) -> Method:
    return METHODS[name] if name in METHODS else JOINED[name]


def _fp8(weight: Tensor) -> Tensors:
    import torch

    rows, columns = weight.shape
    scales = torch.empty(-(-rows // BLOCK), -(-columns // BLOCK))
    stored = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            block = (slice(i * BLOCK, (i + 1) * BLOCK), slice(j * BLOCK, (j + 1) * BLOCK))
            scales[i, j] = weight[block].abs().max() / 448
            stored[block] = (weight[block] / scales[i, j]).to(torch.float8_e4m3fn)
    return {"weight": stored, "weight_scale_inv": scales}


def _int8(weight: Tensor) -> Tensors:
    import torch

    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    return {"weight": (weight / scale).round().to(torch.int8), "weight_scale": scale}


def _int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """([out, in] of 0 to 15 with 8 for zero, [out, in / GROUP] scales)."""
    groups = weight.unflatten(1, (-1, GROUP))
    scale = groups.abs().amax(dim=2, keepdim=True) / 7
    return ((groups / scale).round() + 8).clamp(0, 15).flatten(1).int(), scale.squeeze(2)


def _words(values: Tensor, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """[rows, 8 n] of 0 to 15 -> [rows, n] of 32 bits; order: which of eight goes where, lowest bits first."""
    import torch

    eights = values.long().unflatten(1, (-1, 8))
    words = sum(eights[:, :, source] << 4 * place for place, source in enumerate(order))
    assert isinstance(words, torch.Tensor)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def _packed(weight: Tensor) -> Tensors:
    import torch

    values, scale = _int4(weight)
    shape = torch.tensor(weight.shape, dtype=torch.int64)
    return {"weight_packed": _words(values), "weight_scale": scale.bfloat16(), "weight_shape": shape}


def _awq(weight: Tensor) -> Tensors:
    values, scale = _int4(weight)
    zeros = _words(scale.T.new_full(scale.T.shape, 8), _AWQ_ORDER)
    return {"qweight": _words(values.T, _AWQ_ORDER), "qzeros": zeros, "scales": scale.T.bfloat16()}


def _gptq(weight: Tensor) -> Tensors:
    import torch

    values, scale = _int4(weight)
    zeros = _words(scale.T.new_full(scale.T.shape, 7))
    groups = torch.arange(weight.shape[1], dtype=torch.int32) // GROUP
    return {"qweight": _words(values).T, "qzeros": zeros, "scales": scale.T.bfloat16(), "g_idx": groups}


def _mxfp4(weight: Tensor) -> Tensors:
    """Each 32 inputs share a power of two; an element is a sign and one of eight sizes, the first in the low bits."""
    import torch

    groups = weight.transpose(1, 2).unflatten(2, (-1, GROUP))
    power = groups.abs().amax(dim=3).clamp_min(2.0**-20).log2().floor() - 2
    scaled = groups / power.exp2()[..., None]
    size = (scaled.abs()[..., None] - torch.tensor(_SIZES)).abs().argmin(-1)
    code = size + 8 * (scaled < 0)
    return {
        "_blocks": (code[..., 0::2] + 16 * code[..., 1::2]).to(torch.uint8),
        "_scales": (power + 127).to(torch.uint8),
    }


def _compressed(form: str, weights: Mapping[str, object], inputs: Mapping[str, object] | None) -> dict[str, object]:
    group = {
        "targets": ["Linear"],
        "weights": {"type": "int", "symmetric": True, **weights},
        "input_activations": inputs,
    }
    return {"quant_method": "compressed-tensors", "format": form, "ignore": _NOT, "config_groups": {"group_0": group}}


_TOKENS = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
METHODS = {
    "fp8": Method(
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]},
        _fp8,
    ),
    "w8a8": Method(_compressed("int-quantized", {"num_bits": 8, "strategy": "channel"}, _TOKENS), _int8),
    "w4a16": Method(
        _compressed("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": GROUP}, None), _packed
    ),
    "awq": Method(
        {
            "quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm",
            "modules_to_not_convert": ["mlp.gate"],
        },
        _awq,
    ),
    "gptq": Method(
        {
            "quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True,
            "dynamic": {"-:.*mlp.gate$": {}},
        },
        _gptq,
    ),
}  # fmt: skip
#: Methods of checkpoints that store all experts of a layer together, as gpt-oss does.
JOINED = {
    "mxfp4": Method(
        {
            "quant_method": "mxfp4",
            "modules_to_not_convert": [
                "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
            ],
        },
        _mxfp4,
        joined=True,
    ),
}  # fmt: skip
