"""Softmax and its logarithm: the largest element is taken away first, so nothing overflows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from flroute.reference_vendor.blocks import in_rows
from flroute.reference_vendor.sums import sum_of_rows
from flroute.reference_vendor.support import FLOATS, Array, Result, axes, narrow, quiet, reduce
from flroute.vendor import Unsupported, kernel, numpy_dtype


def _along_last(function: Callable[..., None], dim: int, *arrays: Array) -> Result:
    """``function(out, *arrays)`` on rows along ``dim``."""
    first = arrays[0]
    (axis,) = axes(dim, first.ndim) or (0,)
    if first.ndim == 0:
        return in_rows(function, *(array.reshape(1) for array in arrays)).reshape(())
    if axis == first.ndim - 1:
        return in_rows(function, *arrays)
    turned = in_rows(function, *(array.swapaxes(axis, -1) for array in arrays))
    return np.ascontiguousarray(turned.swapaxes(axis, -1))


def _take_largest_away(out: Array, x: Array) -> None:
    np.subtract(x, reduce(np.maximum, x, axis=-1, keepdims=True), out=out)


def _softmax(out: Array, x: Array) -> None:
    _take_largest_away(out, x)
    np.exp(out, out=out)
    np.divide(out, narrow(sum_of_rows(out), out), out=out)


def _safe_softmax(out: Array, x: Array) -> None:
    """Of a row that is minus infinity throughout, and so has no softmax, zeros."""
    _softmax(out, x)
    out[reduce(np.maximum, x, axis=-1) == -np.inf] = 0


def _log_softmax(out: Array, x: Array) -> None:
    _take_largest_away(out, x)
    total = sum_of_rows(np.exp(out))
    np.subtract(out, narrow(np.log(total), out), out=out)


def _softmax_slope(out: Array, gradient: Array, output: Array) -> None:
    np.multiply(gradient, output, out=out)
    total = sum_of_rows(out)
    np.subtract(gradient, narrow(total, out), out=out)
    np.multiply(out, output, out=out)


def _log_softmax_slope(out: Array, gradient: Array, output: Array) -> None:
    np.exp(output, out=out)
    np.multiply(out, narrow(sum_of_rows(gradient), out), out=out)
    np.subtract(gradient, out, out=out)


@kernel("aten::_softmax", dtypes=FLOATS)
@quiet
def softmax(x: Array, dim: int, half_to_float: bool) -> Result:
    return _along_last(_softmax, dim, x)


@kernel("aten::_safe_softmax", dtypes=FLOATS)
@quiet
def safe_softmax(x: Array, dim: int, dtype: torch.dtype | None = None) -> Result:
    if dtype is not None and numpy_dtype(dtype) != x.dtype:
        raise Unsupported(f"a result of {dtype} for an input of {x.dtype}")
    return _along_last(_safe_softmax, dim, x)


@kernel("aten::_log_softmax", dtypes=FLOATS)
@quiet
def log_softmax(x: Array, dim: int, half_to_float: bool) -> Result:
    return _along_last(_log_softmax, dim, x)


def _check_dtype(gradient: Array, input_dtype: torch.dtype) -> None:
    if numpy_dtype(input_dtype) != gradient.dtype:
        raise Unsupported(f"a gradient of {gradient.dtype} for an input of {input_dtype}")


@kernel("aten::_softmax_backward_data", dtypes=FLOATS)
@quiet
def softmax_backward(gradient: Array, output: Array, dim: int, input_dtype: torch.dtype) -> Result:
    _check_dtype(gradient, input_dtype)
    return _along_last(_softmax_slope, dim, gradient, output)


@kernel("aten::_log_softmax_backward_data", dtypes=FLOATS)
@quiet
def log_softmax_backward(gradient: Array, output: Array, dim: int, input_dtype: torch.dtype) -> Result:
    _check_dtype(gradient, input_dtype)
    return _along_last(_log_softmax_slope, dim, gradient, output)
