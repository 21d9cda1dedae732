"""Multi-class and multi-label margin losses: how far each wrong class is from being a margin below each right one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.losses import MEAN, NONE
from flroute.reference_vendor.sums import accurate_sum
from flroute.reference_vendor.support import Array, Result, float_values_long_index, narrow, quiet, wide
from flroute.vendor import Unsupported, kernel


def _per_row(losses: Array, reduction: int, like: Array) -> Any:
    """``losses`` of the rows, reduced; one row without a batch has no dimension."""
    if reduction == NONE:
        return narrow(losses if like.ndim == 2 else losses.reshape(()), like)
    total = accurate_sum(losses)
    return narrow(total / losses.size if reduction == MEAN else total, like)


def _of_rows(gradient: Array, rows: int, reduction: int) -> Array:
    """What reaches each row of the gradient of the reduced loss."""
    received = np.broadcast_to(wide(gradient).reshape(-1), (rows,))
    return received / rows if reduction == MEAN else received


def _float_values_long_target(
    gradient: torch.Tensor, x: torch.Tensor, target: torch.Tensor, *_: Any, **__: Any
) -> bool | str:
    return float_values_long_index(x, target)


# -- one right class per row --------------------------------------------------------------------------


def _shortfalls(
    x: Array, target: Array, p: float, margin: float, weight: Array | None
) -> tuple[Array, Array, Array]:
    """max(0, margin - x[target] + x) of each class but the right one; the right classes; the weight of each row."""
    rows, classes = wide(x.reshape(-1, x.shape[-1] if x.ndim else 1)), target.reshape(-1)
    count = rows.shape[1]
    if p not in (1, 2) or x.ndim > 2 or rows.size == 0 or classes.shape != rows.shape[:1]:
        raise Unsupported(f"p={p}, shapes {x.shape} and {target.shape}")
    if classes.min() < 0 or classes.max() >= count or (weight is not None and weight.shape != (count,)):
        raise Unsupported("a target out of range, or weights for another number of classes")
    each = np.arange(classes.size)
    shortfalls = np.maximum(margin - rows[each, classes][:, None] + rows, 0)
    shortfalls[each, classes] = 0
    return shortfalls, classes, np.ones(classes.size) if weight is None else wide(weight)[classes]


@kernel("aten::multi_margin_loss", when=float_values_long_index)
@quiet
def multi_margin_loss(
    x: Array,
    target: Array,
    p: float = 1,
    margin: float = 1,
    weight: Array | None = None,
    reduction: int = MEAN,
) -> Any:
    shortfalls, _, weights = _shortfalls(x, target, p, margin, weight)
    losses = weights * np.sum(shortfalls**p, axis=1) / shortfalls.shape[1]
    return _per_row(losses, reduction, x)


@kernel(
    "aten::multi_margin_loss_backward",
    when=_float_values_long_target,
)
@quiet
def multi_margin_loss_backward(
    gradient: Array,
    x: Array,
    target: Array,
    p: float,
    margin: float,
    weight: Array | None = None,
    reduction: int = MEAN,
) -> Result:
    shortfalls, classes, weights = _shortfalls(x, target, p, margin, weight)
    slopes = 2 * shortfalls if p == 2 else (shortfalls > 0).astype(np.float64)
    slopes *= (_of_rows(gradient, classes.size, reduction) * weights / shortfalls.shape[1])[:, None]
    slopes[np.arange(classes.size), classes] = -np.sum(slopes, axis=1)
    return narrow(slopes, x).reshape(x.shape)


# -- several right classes per row: those listed before the first -1 -----------------------------------


def _pairs(x: Array, target: Array) -> tuple[Array, Array, Array, Array]:
    """For each row 1 - x[right] + x[wrong] above 0, right by wrong; the right classes, which of them count, and a mask of them."""
    rows = wide(x.reshape(-1, x.shape[-1] if x.ndim else 1))
    listed = target.reshape(rows.shape)
    if target.shape != x.shape or x.ndim > 2 or rows.size == 0:
        raise Unsupported(f"shapes {x.shape} and {target.shape}")
    if listed.min() < -1 or listed.max() >= rows.shape[1]:
        raise Unsupported("a target out of range")
    counts = np.cumsum(listed < 0, axis=1) == 0
    right = np.where(counts, listed, 0)
    is_right = np.zeros(rows.shape, np.bool_)
    is_right[np.nonzero(counts)[0], right[counts]] = True
    gaps = 1 - np.take_along_axis(rows, right, 1)[:, :, None] + rows[:, None, :]
    return np.maximum(gaps, 0) * (counts[:, :, None] & ~is_right[:, None, :]), right, counts, is_right


@kernel("aten::multilabel_margin_loss_forward", when=float_values_long_index)
@quiet
def multilabel_margin_loss(x: Array, target: Array, reduction: int) -> tuple[Any, Any]:
    gaps, _, _, is_right = _pairs(x, target)
    losses = np.sum(gaps, axis=(1, 2)) / gaps.shape[2]
    return _per_row(losses, reduction, x), is_right.astype(x.dtype).reshape(target.shape)


@kernel(
    "aten::multilabel_margin_loss_backward",
    when=_float_values_long_target,
)
@quiet
def multilabel_margin_loss_backward(
    gradient: Array, x: Array, target: Array, reduction: int, is_target: Array
) -> Result:
    gaps, right, _, _ = _pairs(x, target)
    active = (gaps > 0).astype(np.float64)
    slopes = np.sum(active, axis=1)
    np.add.at(slopes, (np.arange(len(slopes))[:, None], right), -np.sum(active, axis=2))
    slopes *= (_of_rows(gradient, len(slopes), reduction) / gaps.shape[2])[:, None]
    return narrow(slopes, x).reshape(x.shape)
