"""Losses. ``reduction`` is PyTorch's number for it: 0 keeps every element, 1 is the mean, 2 the sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.sums import accurate_sum
from flroute.reference_vendor.support import (
    FLOATS,
    Array,
    Result,
    float_values_long_index,
    narrow,
    quiet,
    wide,
)
from flroute.vendor import Unsupported, kernel

NONE, MEAN, SUM = 0, 1, 2


def _every_target_counts(flat: Array, classes: int, ignore_index: int) -> bool:
    """Whether each target is a class that is not ignored: one pass tells, as a negative number is a large unsigned one."""
    return not 0 <= ignore_index < classes and bool(np.maximum.reduce(flat.view(np.uint64)) < classes)


def _weighed(
    x: Array, target: Array, weight: Array | None, ignore_index: int
) -> tuple[Array, Array | None, Array | None]:
    """The class of each target (classes run along axis 1 of ``x``, axis 0 without a batch), its weight, and whether it counts.

    The weights and what counts are ``None`` where every target counts, and counts as 1.
    """
    classes = x.shape[0] if x.ndim == 1 else x.shape[1]
    flat = target.reshape(-1)
    if weight is None and _every_target_counts(flat, classes, ignore_index):
        return flat, None, None
    counts = np.not_equal(flat, ignore_index)
    wrong = flat[counts & ((flat < 0) | (flat >= classes))]
    if wrong.size:
        raise IndexError(f"Target {wrong[0]} is out of bounds.")
    chosen = np.where(counts, flat, 0)
    weights = np.ones(flat.shape) if weight is None else wide(weight)[chosen]
    return chosen, np.where(counts, weights, 0.0), counts


def _rows(x: Array) -> Result:
    """``x`` as (targets, classes): one row per target, in the target's order."""
    if x.ndim <= 2:
        return x if x.ndim == 2 else x[None]
    return np.moveaxis(x, 1, -1).reshape(-1, x.shape[1])


def _check_target(x: Array, target: Array, weight: Array | None) -> None:
    expected = x.shape[:1] + x.shape[2:] if x.ndim > 1 else target.shape
    classes = x.shape[:1] if x.ndim == 1 else x.shape[1:2]
    if target.shape != expected or target.size == 0 or 0 in x.shape or (x.ndim == 1 and target.size != 1):
        raise Unsupported(f"a target of shape {target.shape} for an input of shape {x.shape}")
    if weight is not None and weight.shape != classes:
        raise Unsupported(f"a weight of shape {weight.shape} for {classes[0]} classes")


def _float_weights_long_target(
    x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, *_: Any
) -> bool | str:
    if weight is not None and weight.dtype is not x.dtype:
        return f"weights of {weight.dtype} for an input of {x.dtype}"
    return float_values_long_index(x, target)


@kernel("aten::nll_loss_forward", "aten::nll_loss2d_forward", when=_float_weights_long_target)
@quiet
def nll_loss(
    x: Array, target: Array, weight: Array | None, reduction: int, ignore_index: int
) -> tuple[Any, Any]:
    _check_target(x, target, weight)
    classes, weights, counts = _weighed(x, target, weight, ignore_index)
    losses = np.negative(_rows(x)[np.arange(classes.size), classes])
    if weights is not None and counts is not None:
        losses = np.where(counts, weights * losses, 0.0)
    if reduction == NONE and x.ndim > 1:
        return narrow(losses.reshape(target.shape), x), np.zeros((), x.dtype)
    total_weight = np.float64(classes.size) if weights is None else accurate_sum(weights)
    loss = accurate_sum(losses)
    if reduction == MEAN:
        loss = loss / total_weight
    return narrow(loss, x), narrow(total_weight, x)


def _float_values_long_target(
    gradient: torch.Tensor, x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, *rest: Any
) -> bool | str:
    for tensor in (gradient, weight, rest[-1]):
        if tensor is not None and tensor.dtype is not x.dtype:
            return f"{tensor.dtype} for an input of {x.dtype}"
    return float_values_long_index(x, target)


@kernel("aten::nll_loss_backward", "aten::nll_loss2d_backward", when=_float_values_long_target)
@quiet
def nll_loss_backward(
    gradient: Array,
    x: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: Array,
) -> Result:
    _check_target(x, target, weight)
    classes, weights, counts = _weighed(x, target, weight, ignore_index)
    scale = -wide(gradient).reshape(-1)
    if reduction == MEAN:
        scale = scale / wide(total_weight)
    if weights is not None and counts is not None:
        scale = np.where(counts, weights * scale, 0.0)
    flat = np.zeros((classes.size, x.shape[min(x.ndim - 1, 1)]), x.dtype)
    flat[np.arange(classes.size), classes] = scale
    if x.ndim <= 2:
        return flat.reshape(x.shape)
    return np.ascontiguousarray(np.moveaxis(flat.reshape(*target.shape, x.shape[1]), -1, 1))


def _reduced(losses: Array, reduction: int, like: Array) -> Any:
    if reduction == NONE:
        return narrow(losses, like)
    total = accurate_sum(losses)
    return narrow(np.true_divide(total, losses.size) if reduction == MEAN else total, like)


@kernel("aten::mse_loss", dtypes=FLOATS)
@quiet
def mse_loss(x: Array, target: Array, reduction: int = MEAN) -> Any:
    return _reduced(np.square(np.subtract(x, target, dtype=np.float64)), reduction, x)


@kernel("aten::mse_loss_backward", dtypes=FLOATS)
@quiet
def mse_loss_backward(gradient: Array, x: Array, target: Array, reduction: int) -> Result:
    difference = np.subtract(x, target, dtype=np.float64)
    scale = 2.0 / difference.size if reduction == MEAN else 2.0
    return narrow(difference * scale * gradient, x)


@kernel("aten::binary_cross_entropy", dtypes=FLOATS)
@quiet
def binary_cross_entropy(x: Array, target: Array, weight: Array | None = None, reduction: int = MEAN) -> Any:
    if x.shape != target.shape or not _within_unit(x):
        raise Unsupported("probabilities outside of 0 to 1, or another shape than the target's")
    probability = wide(x)
    # PyTorch keeps logarithms above -100, so that a certain and wrong guess costs a finite amount.
    right = np.maximum(np.log(probability), -100)
    wrong = np.maximum(np.log1p(-probability), -100)
    losses = (target - 1.0) * wrong - target * right
    return _reduced(losses if weight is None else losses * weight, reduction, x)


def _within_unit(x: Array) -> bool:
    return bool(np.all((x >= 0) & (x <= 1)))


@kernel("aten::binary_cross_entropy_backward", dtypes=FLOATS)
@quiet
def binary_cross_entropy_backward(
    gradient: Array, x: Array, target: Array, weight: Array | None = None, reduction: int = MEAN
) -> Result:
    probability = wide(x)
    result = gradient * (probability - target) / np.maximum((1 - probability) * probability, 1e-12)
    if weight is not None:
        result = result * weight
    return narrow(result / x.size if reduction == MEAN else result, x)


# -- losses that are square near zero and straight beyond ---------------------------------------------


@kernel("aten::huber_loss", dtypes=FLOATS)
@quiet
def huber_loss(x: Array, target: Array, reduction: int = MEAN, delta: float = 1.0) -> Any:
    distance = np.absolute(np.subtract(x, target, dtype=np.float64))
    straight = delta * (distance - 0.5 * delta)
    return _reduced(np.where(distance <= delta, 0.5 * distance * distance, straight), reduction, x)


@kernel("aten::huber_loss_backward", dtypes=FLOATS)
@quiet
def huber_loss_backward(gradient: Array, x: Array, target: Array, reduction: int, delta: float) -> Result:
    difference = np.subtract(x, target, dtype=np.float64)
    scale = 1 / difference.size if reduction == MEAN else 1.0
    return narrow(np.clip(difference, -delta, delta) * scale * gradient, x)


@kernel("aten::smooth_l1_loss", dtypes=FLOATS)
@quiet
def smooth_l1_loss(x: Array, target: Array, reduction: int = MEAN, beta: float = 1.0) -> Any:
    distance = np.absolute(np.subtract(x, target, dtype=np.float64))
    square = 0.5 * distance * distance / np.float64(beta)
    return _reduced(np.where(distance < beta, square, distance - 0.5 * beta), reduction, x)


@kernel("aten::smooth_l1_loss_backward", dtypes=FLOATS)
@quiet
def smooth_l1_loss_backward(gradient: Array, x: Array, target: Array, reduction: int, beta: float) -> Result:
    difference = np.subtract(x, target, dtype=np.float64)
    scale = 1 / difference.size if reduction == MEAN else 1.0
    slope = np.where(difference >= beta, 1.0, difference / np.float64(beta))
    slope = np.where(difference <= -beta, -1.0, slope)  # also at 0 where beta is 0
    return narrow(slope * scale * gradient, x)
