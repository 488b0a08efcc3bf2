"""What the kernels of fp8.cu make of rows, bit for bit, in torch's words: for tests and for measuring what it costs."""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST, FLOOR = 448.0, 1e-30


def packed(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(e4m3 [rows, hidden], float32 scales [rows]) of rows in bfloat16 or float16.

    A scale is the largest finite element over 448. What is not finite becomes NaN, since e4m3 has no infinity.
    """
    wide = rows.float()
    finite = torch.where(wide.isfinite(), wide.abs(), 0.0)
    most = finite.amax(dim=1).clamp_min(FLOOR)
    largest = torch.full_like(most, LARGEST)  # on CUDA torch divides by a number as it multiplies by its inverse
    scaled = wide * (largest / most)[:, None] + (wide - wide)
    return scaled.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn), most / largest


def unpacked(narrow: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of `dtype` again."""
    return (narrow.float() * scales[:, None]).to(dtype)


def rounded(rows: Tensor) -> Tensor:
    """How rows arrive."""
    return unpacked(*packed(rows), rows.dtype)
