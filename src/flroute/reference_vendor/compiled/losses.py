"""The negative log likelihood of classes without weights, summed or averaged: what cross entropy trains with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.compiled.launch import Array, Source, block_of, compiled_kernel
from flroute.reference_vendor.losses import MEAN, NONE
from flroute.reference_vendor.memory import empty
from flroute.reference_vendor.support import FLOAT_TYPES, quiet

BLOCK = 128
_SOURCE = Source("losses")
_DTYPES = ("float32", "float64", "int64")


def _plain(x: Any, target: Any, weight: Any, reduction: int, ignore_index: int) -> bool | str:
    if weight is not None or reduction == NONE:
        return "weights, or a loss for each row"
    if x.dtype not in FLOAT_TYPES or target.dtype is not torch.int64:
        return f"targets of {target.dtype} for {x.dtype}"
    fits = x.ndim == 2 and target.ndim == 1 and x.shape[0] == target.shape[0] and 0 not in x.shape
    return fits or f"a target of shape {tuple(target.shape)} for an input of shape {tuple(x.shape)}"


def _plain_backward(
    gradient: Any, x: Any, target: Any, weight: Any, reduction: int, ignore_index: int, total_weight: Any
) -> bool | str:
    if gradient.ndim or total_weight.numel() != 1:
        return f"a gradient of shape {tuple(gradient.shape)}"
    if gradient.dtype is not x.dtype or total_weight.dtype is not x.dtype:
        return f"a gradient of {gradient.dtype} for {x.dtype}"
    return _plain(x, target, weight, reduction, ignore_index)


def _refuse(target: Array, classes: int, ignore_index: int) -> None:
    wrong = (target != ignore_index) & ((target < 0) | (target >= classes))
    raise IndexError(f"Target {target[wrong][0]} is out of bounds.")


@compiled_kernel("aten::nll_loss_forward", size="nll_loss", dtypes=_DTYPES, when=_plain, mixed=True)
@quiet
def nll_loss(x: Array, target: Array, weight: None, reduction: int, ignore_index: int) -> tuple[Array, Array]:
    sums = np.empty(3)
    _SOURCE.launch("nll_sums", 1, x, target, sums, *x.shape, ignore_index, BLOCK=BLOCK)
    if sums[2]:
        _refuse(target, x.shape[1], ignore_index)
    loss = sums[0] / sums[1] if reduction == MEAN else sums[0]
    return np.array(loss, x.dtype), np.array(sums[1], x.dtype)


@compiled_kernel(
    "aten::nll_loss_backward", size="nll_loss_backward", dtypes=_DTYPES, when=_plain_backward, mixed=True
)
@quiet
def nll_loss_backward(
    gradient: Array,
    x: Array,
    target: Array,
    weight: None,
    reduction: int,
    ignore_index: int,
    total_weight: Array,
) -> Array:
    scale = -np.float64(gradient)
    if reduction == MEAN:
        scale /= np.float64(total_weight.reshape(()))
    out, wrong, (rows, classes) = empty(x.shape, x.dtype), np.zeros(1, np.int32), x.shape
    _SOURCE.launch(
        "nll_backward", rows, target, out, wrong, float(scale), classes, ignore_index, BLOCK=min(block_of(classes), 1024)
    )  # fmt: skip
    if wrong[0]:
        _refuse(target, classes, ignore_index)
    return out
