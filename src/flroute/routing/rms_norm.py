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


def _wide(tensor: Tensor) -> Tensor:
    """In the precision in which the host computes."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _last(x: Tensor, normalized_shape: Sequence[int]) -> list[int]:
    return list(range(x.dim() - len(normalized_shape), x.dim()))


def fused_rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """x / rms(x) * weight, and 1 / rms(x) in the precision it is computed in."""
    wide = _wide(x)
    mean = wide.square().mean(_last(x, normalized_shape), keepdim=True)
    rstd = (mean + (torch.finfo(wide.dtype).eps if eps is None else eps)).rsqrt()
    result = wide * rstd
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
    wide, normalized = _wide(grad), _wide(x) * rstd
    for_input = for_weight = None
    if output_mask[0]:
        scaled = wide if weight is None else wide * weight
        slope = (scaled * normalized).mean(_last(x, normalized_shape), keepdim=True)
        for_input = ((scaled - normalized * slope) * rstd).to(x.dtype).contiguous()
    if output_mask[1] and weight is not None:
        rows = list(range(x.dim() - len(normalized_shape)))
        products = wide * normalized
        for_weight = (products.sum(rows) if rows else products).to(weight.dtype)
    return for_input, for_weight


PARTS: dict[str, Callable[..., Any]] = {
    "aten::_fused_rms_norm": fused_rms_norm,
    "aten::_fused_rms_norm_backward": fused_rms_norm_backward,
}
"""By op: the function that splits it into ops which are routed one by one."""
