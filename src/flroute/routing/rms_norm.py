"""RMS normalization as one op with one gradient, which PyTorch has but not for a device that it does not know.

There it spells the op out in six, and a training step saves what each of them needs. A vendor that has fused kernels
registers them for ``aten::_fused_rms_norm`` and ``aten::_fused_rms_norm_backward``; without, both are split here.

Math: Zhang and Sennrich, Root Mean Square Layer Normalization, https://arxiv.org/abs/1910.07467.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from flroute.routing.attention import wide


def _last(x: Tensor, normalized_shape: Sequence[int]) -> list[int]:
    return list(range(x.dim() - len(normalized_shape), x.dim()))


def fused_rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """x / rms(x) * weight, and 1 / rms(x) in the precision it is computed in."""
    precise = wide(x)
    mean = precise.square().mean(_last(x, normalized_shape), keepdim=True)
    rstd = (mean + (torch.finfo(precise.dtype).eps if eps is None else eps)).rsqrt()
    result = precise * rstd
    if weight is not None:
        result = result * weight
    return result.to(x.dtype).contiguous(), rstd  # row-major, as on the host, whatever ``x`` is


def fused_rms_norm_backward(
    grad: Tensor,
    x: Tensor,
    normalized_shape: Sequence[int],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """With u = x / rms(x) and g = grad * weight: (g - u mean(g u)) / rms(x), and the sum of grad * u over rows."""
    precise, normalized = wide(grad), wide(x) * rstd
    for_input = for_weight = None
    if output_mask[0]:
        scaled = precise if weight is None else precise * weight
        slope = (scaled * normalized).mean(_last(x, normalized_shape), keepdim=True)
        for_input = ((scaled - normalized * slope) * rstd).to(x.dtype).contiguous()
    if output_mask[1] and weight is not None:
        rows = list(range(x.dim() - len(normalized_shape)))
        products = precise * normalized
        for_weight = (products.sum(rows) if rows else products).to(weight.dtype)
    return for_input, for_weight


PARTS: dict[str, Callable[..., Any]] = {
    "aten::_fused_rms_norm": fused_rms_norm,
    "aten::_fused_rms_norm_backward": fused_rms_norm_backward,
}
"""By op: the function that splits it into ops which are routed one by one."""
