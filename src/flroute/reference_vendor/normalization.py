"""Layer, group and batch normalization; statistics in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.blocks import row_blocks
from flroute.reference_vendor.memory import empty
from flroute.reference_vendor.sums import LONGEST_ROW, ONES, accurate_sum, sum_of_rows
from flroute.reference_vendor.support import FLOAT_TYPES, FLOATS, Array, Result, narrow, quiet, wide
from flroute.vendor import Unsupported, kernel

Axes = tuple[int, ...]


def _count(x: Array, over: Axes) -> int:
    return prod(x.shape[dim] for dim in over)


def _centred(x: Array, over: Axes) -> tuple[Array, Array, Array]:
    """``x`` less its mean, in its own dtype; mean and biased variance in double precision, dimensions kept."""
    count = _count(x, over)
    mean = accurate_sum(x, over, True) / count
    centred = x - narrow(mean, x)
    return centred, mean, accurate_sum(np.square(centred), over, True) / count


def _scale_and_shift(centred: Array, scale: Array, bias: Array | None) -> Array:
    """``centred * scale + bias`` in place."""
    centred *= scale
    if bias is not None:
        centred += bias
    return centred


def _through_statistics(gradient: Array, normalized: Array, scale: Array, over: Axes) -> Result:
    """Gradient for ``x`` where ``normalized`` is ``(x - mean) * scale`` and both depend on ``x``."""
    count = _count(gradient, over)
    mean = accurate_sum(gradient, over, True) / count
    slope = accurate_sum(gradient * normalized, over, True) / count
    result = normalized * narrow(-slope, gradient)
    result += gradient
    result -= narrow(mean, gradient)
    result *= scale
    return result


def _sum_of_columns(x: Array) -> Result:
    """The sum of each column of a matrix of few rows."""
    return np.matmul(ONES[: len(x)], x) if x.dtype.char == "f" and len(x) <= LONGEST_ROW else np.add.reduce(x)


def _sum_of_squares(x: Array) -> Result:
    """The sum of the squares of each row of a row-major matrix, as a column."""
    return np.vecdot(x, x)[:, None] if x.shape[1] <= LONGEST_ROW else sum_of_rows(np.square(x))


# -- layer normalization ------------------------------------------------------------------------------


def _inner(x: Array, normalized_shape: Sequence[int]) -> Axes:
    """The trailing dimensions that are normalized."""
    inner = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    if not inner or x.shape[inner[0] :] != tuple(normalized_shape) or 0 in normalized_shape:
        raise Unsupported(f"layer norm of shape {x.shape} over {tuple(normalized_shape)}")
    return inner


def _scaled_by_weight(out: Array, weight: Array | None, bias: Array | None) -> None:
    if weight is not None:
        np.multiply(out, weight, out=out)
    if bias is not None:
        np.add(out, bias, out=out)


@kernel("aten::native_layer_norm", dtypes=FLOATS)
@quiet
def layer_norm(
    x: Array, normalized_shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    inner = _inner(x, normalized_shape)
    width = prod(normalized_shape)
    rows = x.reshape(-1, width)
    output, mean, rstd = (
        empty(rows.shape, x.dtype),
        empty((len(rows), 1), x.dtype),
        empty((len(rows), 1), x.dtype),
    )
    weight, bias = (None if values is None else values.reshape(width) for values in (weight, bias))
    for some in row_blocks(rows):
        out, centre, scale = output[some], mean[some], rstd[some]
        centre[...] = sum_of_rows(rows[some], precise=True) / width
        np.subtract(rows[some], centre, out=out)
        scale[...] = 1 / np.sqrt(_sum_of_squares(out) / width + eps)
        np.multiply(out, scale, out=out)
        _scaled_by_weight(out, weight, bias)
    kept = (*x.shape[: inner[0]], *(1,) * len(inner))
    return output.reshape(x.shape), mean.reshape(kept), rstd.reshape(kept)


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
    """With n = (x - mean) rstd, each row's gradient is rstd (g - mean(g) - n mean(g n)), where g = gradient * weight."""
    _inner(x, normalized_shape)
    width = prod(normalized_shape)
    rows, gradients = x.reshape(-1, width), gradient.reshape(-1, width)
    mean, rstd = mean.reshape(-1, 1), rstd.reshape(-1, 1)
    wants_input, wants_weight, wants_bias = output_mask
    for_input = empty(rows.shape, x.dtype) if wants_input else None
    for_weight = np.zeros(width) if wants_weight and weight is not None else None
    for_bias = np.zeros(width) if wants_bias and bias is not None else None
    weights = np.ones(width, x.dtype) if weight is None else weight.reshape(width)
    for some in row_blocks(rows):
        upstream, scale = gradients[some], rstd[some]
        normalized = np.subtract(rows[some], mean[some])
        np.multiply(normalized, scale, out=normalized)
        products = np.multiply(upstream, normalized)
        if for_bias is not None:
            for_bias += _sum_of_columns(upstream)
        if for_weight is not None:
            for_weight += _sum_of_columns(products)
        if for_input is not None:
            slope, shift = products @ weights, upstream @ weights
            out = np.multiply(upstream, weights, out=for_input[some])
            np.multiply(normalized, (slope / width)[:, None], out=normalized)
            np.subtract(out, normalized, out=out)
            np.subtract(out, (shift / width)[:, None], out=out)
            np.multiply(out, scale, out=out)
    return (
        None if for_input is None else for_input.reshape(x.shape),
        None if for_weight is None else narrow(for_weight, x).reshape(normalized_shape),
        None if for_bias is None else narrow(for_bias, x).reshape(normalized_shape),
    )


# -- group normalization ------------------------------------------------------------------------------

Grouped = tuple[int, int, int, int]
"""Samples, groups, channels in a group, positions."""


def _grouped(x: Array, samples: int, channels: int, positions: int, groups: int) -> Grouped:
    """The shape in which the last two dimensions are what is normalized."""
    fit = groups > 0 and channels % groups == 0 and channels * positions > 0
    if not fit or x.size != samples * channels * positions:
        raise Unsupported(f"group norm of shape {x.shape} in {groups} groups of {channels} channels")
    return samples, groups, channels // groups, positions


def _of_channels(values: Array, shape: Grouped) -> Result:
    """A value per channel, shaped to meet the grouped input."""
    return values.reshape(1, shape[1], shape[2], 1)


@kernel("aten::native_group_norm", dtypes=FLOATS)
@quiet
def group_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    samples: int,
    channels: int,
    positions: int,
    groups: int,
    eps: float,
) -> tuple[Array, Array, Array]:
    shape = _grouped(x, samples, channels, positions, groups)
    centred, mean, variance = _centred(x.reshape(shape), (2, 3))
    rstd = 1 / np.sqrt(variance + eps)
    scale = rstd if weight is None else rstd * _of_channels(weight, shape)
    shift = None if bias is None else _of_channels(bias, shape)
    output = _scale_and_shift(centred, narrow(scale, x), shift).reshape(x.shape)
    return output, narrow(mean, x).reshape(shape[:2]), narrow(rstd, x).reshape(shape[:2])


@kernel("aten::native_group_norm_backward", dtypes=FLOATS)
@quiet
def group_norm_backward(
    gradient: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None,
    samples: int,
    channels: int,
    positions: int,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    shape = _grouped(x, samples, channels, positions, groups)
    if gradient.shape != x.shape or mean.size != samples * groups or rstd.size != samples * groups:
        raise Unsupported(f"a gradient of {gradient.shape} for group norm of shape {x.shape}")
    rstd = rstd.reshape(*shape[:2], 1, 1)
    normalized = (x.reshape(shape) - mean.reshape(*shape[:2], 1, 1)) * rstd
    gradient = gradient.reshape(shape)
    wants_input, wants_weight, wants_bias = output_mask
    for_input = for_weight = for_bias = None
    if wants_input:
        scaled = gradient if weight is None else gradient * _of_channels(weight, shape)
        for_input = _through_statistics(scaled, normalized, rstd, (2, 3)).reshape(x.shape)
    if wants_weight:
        for_weight = narrow(accurate_sum(gradient * normalized, (0, 3)).reshape(channels), x)
    if wants_bias:
        for_bias = narrow(accurate_sum(gradient, (0, 3)).reshape(channels), x)
    return for_input, for_weight, for_bias


# -- batch normalization ------------------------------------------------------------------------------


def _batch_axes(x: Array) -> Axes:
    """All dimensions but the channels, which come second."""
    if x.ndim < 2 or x.size == 0:
        raise Unsupported(f"batch norm of shape {x.shape}")
    return (0, *range(2, x.ndim))


def _per_channel(values: Array | None, x: Array) -> Any:
    """A value per channel, shaped to meet ``x``."""
    return None if values is None else values.reshape(-1, *(1,) * (x.ndim - 2))


def update_running(running: Array | None, batch: Array, momentum: float) -> None:
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
        centred, mean, variance = _centred(x, over)
        rstd = 1 / np.sqrt(variance + eps)
        count = _count(x, over)
        saved = narrow(mean.reshape(-1), x), narrow(rstd.reshape(-1), x)
        update_running(running_mean, mean, momentum)
        update_running(running_var, variance * np.true_divide(count, count - 1), momentum)
    elif running_mean is None or running_var is None:
        raise Unsupported("batch norm for evaluation without running statistics")
    else:
        centred = x - _per_channel(running_mean, x)
        rstd = 1 / np.sqrt(_per_channel(wide(running_var), x) + eps)
        saved = np.empty(0, x.dtype), np.empty(0, x.dtype)
    scale = rstd if weight is None else rstd * _per_channel(weight, x)
    return _scale_and_shift(centred, narrow(scale, x), _per_channel(bias, x)), *saved


@kernel("aten::_native_batch_norm_legit.no_stats", dtypes=FLOATS)
def batch_norm_no_stats(
    x: Array, weight: Array | None, bias: Array | None, training: bool, momentum: float, eps: float
) -> tuple[Array, Array, Array]:
    return batch_norm(x, weight, bias, None, None, training, momentum, eps)


@kernel("aten::_batch_norm_with_update", dtypes=FLOATS)
def batch_norm_with_update(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array, Array]:
    """The last result is what cudnn keeps for its backward pass; here, as on the host, nothing."""
    results = batch_norm(x, weight, bias, running_mean, running_var, True, momentum, eps)
    return *results, np.empty(0, np.uint8)


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
    if mean is None or rstd is None:
        raise Unsupported("batch norm backward without the statistics of its forward")
    if not train:
        rstd = narrow(1 / np.sqrt(wide(rstd) + eps), x)
    scale = rstd if weight is None else rstd * _per_channel(weight, x)
    wants_input, wants_weight, wants_bias = output_mask
    centred = x - mean
    total = accurate_sum(gradient, over, True)
    products = accurate_sum(gradient * centred, over, True)
    for_input = for_weight = None
    if wants_input:
        for_input = gradient * scale
        if train:  # scale (g - mean(g) - n mean(g n)), where n = centred * rstd: both depend on x
            count = _count(x, over)
            centred *= narrow(products * np.square(wide(rstd)) * scale / -count, x)
            for_input += centred
            for_input -= narrow(total * scale / count, x)
    if wants_weight:
        for_weight = narrow((products * rstd).reshape(-1), x)
    for_bias = narrow(total.reshape(-1), x) if wants_bias else None
    return for_input, for_weight, for_bias


def _float_input(gradient: torch.Tensor, x: torch.Tensor, *_: Any) -> bool | str:
    return (gradient.dtype is x.dtype and x.dtype in FLOAT_TYPES) or f"an input of {x.dtype}"


@kernel("aten::batch_norm_backward", when=_float_input)
def batch_norm_backward_with_reserve(
    gradient: Array,
    x: Array,
    weight: Array,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_var: Array | None,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Array,
) -> tuple[Array | None, Array | None, Array | None]:
    """``save_var`` is the inverse deviation, whatever its name says."""
    return batch_norm_backward(
        gradient, x, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )
