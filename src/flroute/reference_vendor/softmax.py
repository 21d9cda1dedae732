"""Softmax and its logarithm: the largest element is taken away first, so nothing overflows."""

from __future__ import annotations

import numpy as np
import torch

from flroute.reference_vendor.support import (
    FLOATS,
    Array,
    Result,
    accurate_sum,
    axes,
    narrow,
    quiet,
    reduce,
    wide,
)
from flroute.vendor import Unsupported, kernel, numpy_dtype


def _shifted(x: Array, over: tuple[int, ...]) -> Result:
    """``x`` less its largest element along ``over``, in double precision."""
    if x.size == 0:
        return wide(x)
    return np.subtract(x, reduce(np.maximum, x, axis=over, keepdims=True), dtype=np.float64)


@kernel("aten::_softmax", dtypes=FLOATS)
@quiet
def softmax(x: Array, dim: int, half_to_float: bool) -> Result:
    over = axes(dim, x.ndim)
    exponentials = np.exp(_shifted(x, over))
    return narrow(exponentials / accurate_sum(exponentials, over, True), x)


@kernel("aten::_log_softmax", dtypes=FLOATS)
@quiet
def log_softmax(x: Array, dim: int, half_to_float: bool) -> Result:
    over = axes(dim, x.ndim)
    shifted = _shifted(x, over)
    return narrow(shifted - np.log(accurate_sum(np.exp(shifted), over, True)), x)


def _check_dtype(gradient: Array, input_dtype: torch.dtype) -> None:
    if numpy_dtype(input_dtype) != gradient.dtype:
        raise Unsupported(f"a gradient of {gradient.dtype} for an input of {input_dtype}")


@kernel("aten::_softmax_backward_data", dtypes=FLOATS)
@quiet
def softmax_backward(gradient: Array, output: Array, dim: int, input_dtype: torch.dtype) -> Result:
    _check_dtype(gradient, input_dtype)
    products = np.multiply(gradient, output, dtype=np.float64)
    total = accurate_sum(products, axes(dim, gradient.ndim), True)
    return narrow(products - output * total, output)


@kernel("aten::_log_softmax_backward_data", dtypes=FLOATS)
@quiet
def log_softmax_backward(gradient: Array, output: Array, dim: int, input_dtype: torch.dtype) -> Result:
    _check_dtype(gradient, input_dtype)
    total = accurate_sum(gradient, axes(dim, gradient.ndim), True)
    return narrow(gradient - np.exp(wide(output)) * total, output)
