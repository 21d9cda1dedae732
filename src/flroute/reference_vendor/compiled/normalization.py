"""Layer and RMS normalization and their gradients: each row is read once."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from flroute.reference_vendor.compiled.launch import (
    Array,
    Source,
    block_of,
    ceil_div,
    compiled_kernel,
    wide_type,
)
from flroute.reference_vendor.compiled.rows import LONGEST_ROW
from flroute.reference_vendor.float32_parameters import parameters_fit
from flroute.reference_vendor.memory import empty

ROWS = 64
"""Rows whose contributions to a parameter's gradient one program adds up, in float32."""
_SOURCE = Source("normalization", "rows", "common")


def _fits(x: Any, normalized_shape: Sequence[int]) -> bool | str:
    width = prod(normalized_shape)
    if not normalized_shape or tuple(x.shape[x.ndim - len(normalized_shape) :]) != tuple(normalized_shape):
        return f"normalized shape {list(normalized_shape)}"
    return 0 < width <= LONGEST_ROW or f"rows of {width} elements"


def _may_normalize(x: Any, normalized_shape: Sequence[int], *parameters: Any) -> bool | str:
    fit = parameters_fit(x, *parameters[:-1])  # the last is eps
    return _fits(x, normalized_shape) if fit is True else fit


def _may_differentiate(gradient: Any, x: Any, normalized_shape: Sequence[int]) -> bool | str:
    if gradient.shape != x.shape or gradient.dtype is not x.dtype:
        return "a gradient of another shape or dtype"
    return _fits(x, normalized_shape)


def _may_differentiate_layer_norm(
    gradient: Any, x: Any, normalized_shape: Sequence[int], *parameters: Any
) -> bool | str:
    fit = parameters_fit(x, *parameters[:-1])  # the last says which gradients are wanted
    return _may_differentiate(gradient, x, normalized_shape) if fit is True else fit


def _may_differentiate_rms_norm(
    gradient: Any, x: Any, normalized_shape: Sequence[int], rstd: Any, weight: Any, *_: Any
) -> bool | str:
    if weight is not None and weight.dtype is not x.dtype:
        return (
            f"a weight of {weight.dtype}"  # whose gradient PyTorch's rules expect in the dtype of the input
        )
    return _may_differentiate(gradient, x, normalized_shape)


def _statistic(x: Array, normalized_shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Memory for one number per row."""
    outer = x.ndim - len(normalized_shape)
    return np.empty((*x.shape[:outer], *(1,) * len(normalized_shape)), dtype)


@compiled_kernel("aten::native_layer_norm", size="layer_norm", when=_may_normalize, mixed=True)
def layer_norm(
    x: Array, normalized_shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    width, out = prod(normalized_shape), empty(x.shape, x.dtype)
    kind = next((p.dtype for p in (weight, bias) if p is not None), x.dtype)
    mean, rstd = _statistic(x, normalized_shape, kind), _statistic(x, normalized_shape, kind)
    _SOURCE.launch(
        "layer_norm", x.size // width, x, out if weight is None else weight, out if bias is None else bias, out, mean, rstd,
        width, float(eps), WEIGHT=weight is not None, BIAS=bias is not None, BLOCK=block_of(width),
    )  # fmt: skip
    return out, mean, rstd


@compiled_kernel(
    "aten::native_layer_norm_backward",
    size="layer_norm_backward",
    when=_may_differentiate_layer_norm,
    mixed=True,
)
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
    width = prod(normalized_shape)
    rows, block = x.size // width, block_of(width)
    for_input = for_weight = for_bias = None
    if output_mask[0]:
        for_input = empty(x.shape, x.dtype)
        _SOURCE.launch(
            "layer_norm_backward", rows, gradient, x, mean, rstd, for_input if weight is None else weight, for_input, width,
            WEIGHT=weight is not None, BLOCK=block,
        )  # fmt: skip
    like_weight, like_bias = weight if output_mask[1] else None, bias if output_mask[2] else None
    if like_weight is not None or like_bias is not None:
        parts = np.empty((2, ceil_div(rows, ROWS), width), wide_type(x))
        _SOURCE.launch(
            "layer_norm_parameters", parts.shape[1], gradient, x, mean, rstd, parts[0], parts[1], rows, width,
            ROWS=ROWS, BLOCK=block,
        )  # fmt: skip
        for_weight = None if like_weight is None else _total(parts[0], like_weight)
        for_bias = None if like_bias is None else _total(parts[1], like_bias)
    return for_input, for_weight, for_bias


def _total(parts: Array, like: Array) -> Array:
    """The sum over programs, of the shape and type of ``like``."""
    out = np.empty(like.shape, like.dtype)
    _SOURCE.launch("total_of_columns", ceil_div(out.size, 256), parts, out, len(parts), out.size, BLOCK=256)
    return out


@compiled_kernel("aten::_fused_rms_norm", size="rms_norm", when=_may_normalize, mixed=True)
def rms_norm(
    x: Array, normalized_shape: Sequence[int], weight: Array | None, eps: float | None
) -> tuple[Array, Array]:
    width, out, kind = prod(normalized_shape), empty(x.shape, x.dtype), wide_type(x)
    rstd = _statistic(x, normalized_shape, kind)
    _SOURCE.launch(
        "rms_norm", x.size // width, x, out if weight is None else weight, out, rstd, width,
        float(np.finfo(kind).eps if eps is None else eps), WEIGHT=weight is not None, BLOCK=block_of(width),
    )  # fmt: skip
    return out, rstd


@compiled_kernel(
    "aten::_fused_rms_norm_backward", size="rms_norm_backward", when=_may_differentiate_rms_norm, mixed=True
)
def rms_norm_backward(
    gradient: Array,
    x: Array,
    normalized_shape: Sequence[int],
    rstd: Array,
    weight: Array | None,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None]:
    width = prod(normalized_shape)
    rows, block = x.size // width, block_of(width)
    for_input = for_weight = None
    if output_mask[0]:
        for_input = empty(x.shape, x.dtype)
        _SOURCE.launch(
            "rms_norm_backward", rows, gradient, x, rstd, for_input if weight is None else weight, for_input, width,
            WEIGHT=weight is not None, BLOCK=block,
        )  # fmt: skip
    if output_mask[1] and weight is not None:
        parts = np.empty((ceil_div(rows, ROWS), width), wide_type(x))
        _SOURCE.launch(
            "rms_norm_parameters", len(parts), gradient, x, rstd, parts, rows, width, ROWS=ROWS, BLOCK=block
        )
        for_weight = _total(parts, weight)
    return for_input, for_weight
