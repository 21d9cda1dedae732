"""The ops that ``torch.nn.SyncBatchNorm`` calls between its collectives, which PyTorch implements on cuda only.

Math: Ioffe and Szegedy, Batch Normalization, https://arxiv.org/abs/1502.03167; the statistics of several ranks are joined
as in Chan et al., Algorithms for Computing the Sample Variance. Statistics of half precision are float32, as on cuda.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flroute.routing.attention import wide


def _rows(x: Tensor) -> list[int]:
    """Every dimension but that of the channels."""
    return [dim for dim in range(x.dim()) if dim != 1]


def _by_channel(value: Tensor, like: Tensor) -> Tensor:
    return value.reshape([1, -1] + [1] * (like.dim() - 2))


def stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean of each channel, and 1 / standard deviation."""
    variance, mean = torch.var_mean(wide(x), _rows(x), correction=0)
    return mean, (variance + eps).rsqrt()


def elemt(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    eps: float,  # noqa: ARG001 -- aten's signature
) -> Tensor:
    """(x - mean) / standard deviation * weight + bias; ``eps`` is in ``invstd`` already."""
    result = (wide(x) - _by_channel(mean, x)) * _by_channel(invstd, x)
    if weight is not None:
        result = result * _by_channel(wide(weight), x)
    if bias is not None:
        result = result + _by_channel(wide(bias), x)
    return result.to(x.dtype)


def gather_stats_with_counts(
    x: Tensor,  # noqa: ARG001 -- aten's signature
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Mean and 1 / standard deviation of all ranks, whose own are the rows of ``mean`` and ``invstd``."""
    shares = counts.to(mean.dtype).unsqueeze(1)
    total = shares.sum()
    overall = (mean * shares).sum(0) / total
    spread = invstd.pow(-2) - eps + (mean - overall).square()
    variance = (spread * shares).sum(0) / total
    if running_mean is not None:
        running_mean.lerp_(overall.to(running_mean.dtype), momentum)
    if running_var is not None:
        unbiased = variance * (total / (total - 1))
        running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    return overall, (variance + eps).rsqrt()


def gather_stats(
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    count: int,
) -> tuple[Tensor, Tensor]:
    """The same of ranks that have as many elements each."""
    counts = torch.full((mean.size(0),), count, dtype=mean.dtype, device=mean.device)
    return gather_stats_with_counts(x, mean, invstd, running_mean, running_var, momentum, eps, counts)


def backward_reduce(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,  # noqa: ARG001 -- aten's signature
    weight_g: bool,  # noqa: ARG001
    bias_g: bool,  # noqa: ARG001
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums over this rank of grad and grad * (x - mean), and the gradients of weight and bias: all cost no more than some."""
    precise = wide(grad)
    total = precise.sum(_rows(x))
    total_by_distance = (precise * (wide(x) - _by_channel(mean, x))).sum(_rows(x))
    dtype = total.dtype if weight is None else weight.dtype
    return total, total_by_distance, (total_by_distance * invstd).to(dtype), total.to(dtype)


def backward_elemt(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """The gradient of the input, from the sums over all ranks."""
    total = count.sum()
    slope = _by_channel(invstd.square() * sum_dy_xmu / total, x)
    result = wide(grad) - _by_channel(sum_dy / total, x) - (wide(x) - _by_channel(mean, x)) * slope
    factor = invstd if weight is None else invstd * wide(weight)
    return (result * _by_channel(factor, x)).to(x.dtype)


PARTS: dict[str, Callable[..., Any]] = {
    "aten::batch_norm_stats": stats,
    "aten::batch_norm_elemt": elemt,
    "aten::batch_norm_gather_stats_with_counts": gather_stats_with_counts,
    "aten::batch_norm_gather_stats": gather_stats,
    "aten::batch_norm_backward_reduce": backward_reduce,
    "aten::batch_norm_backward_elemt": backward_elemt,
}
"""By op: the function that splits it into ops which are routed one by one."""
