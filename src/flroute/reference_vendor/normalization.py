"""Layer and batch normalization; statistics in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from flroute.reference_vendor.support import (
    FLOATS,
    Array,
    Result,
    accurate_sum,
    narrow,
    quiet,
    wide,
)
from flroute.vendor import Unsupported, kernel

Axes = tuple[int, ...]


def _statistics(x: Array, over: Axes) -> tuple[Array, Array]:
    """Mean and biased variance, dimensions kept."""
    count = prod(x.shape[dim] for dim in over)
    mean = accurate_sum(x, over, True) / count
    return mean, accurate_sum(np.square(wide(x) - mean), over, True) / count


def _affine(normalized: Array, weight: Array | None, bias: Array | None) -> Result:
    if weight is not None:
        normalized = normalized * weight
    return normalized if bias is None else normalized + bias


def _through_statistics(gradient: Array, normalized: Array, rstd: Array, over: Axes) -> Result:
    """Gradient for ``x`` where ``normalized`` is ``(x - mean) * rstd`` and both depend on ``x``."""
    count = prod(gradient.shape[dim] for dim in over)
    mean = accurate_sum(gradient, over, True) / count
    slope = accurate_sum(gradient * normalized, over, True) / count
    return rstd * (gradient - mean - normalized * slope)


# -- layer normalization ------------------------------------------------------------------------------


def _inner(x: Array, normalized_shape: Sequence[int]) -> Axes:
    """The trailing dimensions that are normalized."""
    inner = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    if not inner or x.shape[inner[0] :] != tuple(normalized_shape) or x.size == 0:
        raise Unsupported(f"layer norm of shape {x.shape} over {tuple(normalized_shape)}")
    return inner


@kernel("aten::native_layer_norm", dtypes=FLOATS)
@quiet
def layer_norm(
    x: Array, normalized_shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    mean, variance = _statistics(x, _inner(x, normalized_shape))
    rstd = 1 / np.sqrt(variance + eps)
    output = _affine((x - mean) * rstd, weight, bias)
    return narrow(output, x), narrow(mean, x), narrow(rstd, x)


@kernel("aten::native_layer_norm_backward", dtypes=FLOATS)
@quiet
def layer_norm_backward(
    gradient: Array,
    x: Array,
    normalized_shape: Sequence[int],
    mean: Array,
    rstd: Array,
    weight: Array | None,
    bias: Array | None,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    inner = _inner(x, normalized_shape)
    outer = tuple(range(inner[0]))
    normalized = (wide(x) - mean) * rstd
    wants_input, wants_weight, wants_bias = output_mask
    for_input = for_weight = for_bias = None
    if wants_input:
        scaled = wide(gradient) if weight is None else wide(gradient) * weight
        for_input = narrow(_through_statistics(scaled, normalized, wide(rstd), inner), x)
    if wants_weight and weight is not None:
        for_weight = narrow(accurate_sum(gradient * normalized, outer), x)
    if wants_bias and bias is not None:
        for_bias = narrow(accurate_sum(gradient, outer), x)
    return for_input, for_weight, for_bias


# -- batch normalization ------------------------------------------------------------------------------


def _batch_axes(x: Array) -> Axes:
    """All dimensions but the channels, which come second."""
    if x.ndim < 2 or x.size == 0:
        raise Unsupported(f"batch norm of shape {x.shape}")
    return (0, *range(2, x.ndim))


def _per_channel(values: Array | None, x: Array) -> Array | None:
    """A value per channel, shaped to meet ``x``, in double precision."""
    return None if values is None else wide(values).reshape(-1, *(1,) * (x.ndim - 2))


def _update(running: Array | None, batch: Array, momentum: float) -> None:
    """Move a running statistic towards the batch's, in place."""
    if running is not None:
        running[...] = (1 - momentum) * wide(running) + momentum * batch.reshape(-1)


@kernel("aten::native_batch_norm", "aten::_native_batch_norm_legit", dtypes=FLOATS)
@quiet
def batch_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    over = _batch_axes(x)
    if training:
        mean, variance = _statistics(x, over)
        count = x.size // x.shape[1]
        rstd = 1 / np.sqrt(variance + eps)
        saved_mean, saved_rstd = narrow(mean.reshape(-1), x), narrow(rstd.reshape(-1), x)
        _update(running_mean, mean, momentum)
        _update(running_var, variance * np.true_divide(count, count - 1), momentum)
    else:
        running = _per_channel(running_mean, x), _per_channel(running_var, x)
        if running[0] is None or running[1] is None:
            raise Unsupported("batch norm for evaluation without running statistics")
        mean, rstd = running[0], 1 / np.sqrt(running[1] + eps)
        saved_mean, saved_rstd = np.empty(0, x.dtype), np.empty(0, x.dtype)
    output = _affine((x - mean) * rstd, _per_channel(weight, x), _per_channel(bias, x))
    return narrow(output, x), saved_mean, saved_rstd


@kernel("aten::_native_batch_norm_legit.no_stats", dtypes=FLOATS)
def batch_norm_no_stats(
    x: Array, weight: Array | None, bias: Array | None, training: bool, momentum: float, eps: float
) -> tuple[Array, Array, Array]:
    return batch_norm(x, weight, bias, None, None, training, momentum, eps)


@kernel("aten::native_batch_norm_backward", dtypes=FLOATS)
@quiet
def batch_norm_backward(
    gradient: Array,
    x: Array,
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_invstd: Array | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    over = _batch_axes(x)
    mean = _per_channel(save_mean if train else running_mean, x)
    rstd = _per_channel(save_invstd if train else running_var, x)
    if rstd is not None and not train:
        rstd = 1 / np.sqrt(rstd + eps)
    if mean is None or rstd is None:
        raise Unsupported("batch norm backward without the statistics of its forward")
    normalized = (x - mean) * rstd
    scale = _per_channel(weight, x)
    wants_input, wants_weight, wants_bias = output_mask
    for_input = for_weight = for_bias = None
    if wants_input:
        scaled = wide(gradient) if scale is None else gradient * scale
        through = _through_statistics(scaled, normalized, rstd, over) if train else scaled * rstd
        for_input = narrow(through, x)
    if wants_weight:
        for_weight = narrow(accurate_sum(gradient * normalized, over), x)
    if wants_bias:
        for_bias = narrow(accurate_sum(gradient, over), x)
    return for_input, for_weight, for_bias
