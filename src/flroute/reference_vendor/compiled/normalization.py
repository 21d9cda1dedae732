"""Layer and RMS normalization and their gradients: each row is read once."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from flroute.reference_vendor.compiled.launch import Array, Source, block_of, ceil_div, compiled_kernel
from flroute.reference_vendor.compiled.rows import LONGEST_ROW
from flroute.reference_vendor.memory import empty

ROWS = 64
"""Rows whose contributions to a parameter's gradient one program adds up, in float32."""
_SOURCE = Source("normalization", "rows", "common")


def _fits(x: Any, normalized_shape: Sequence[int]) -> bool | str:
    width = prod(normalized_shape)
    if not normalized_shape or tuple(x.shape[x.ndim - len(normalized_shape) :]) != tuple(normalized_shape):
        return f"normalized shape {list(normalized_shape)}"
    return 0 < width <= LONGEST_ROW or f"rows of {width} elements"


def _may_normalize(x: Any, normalized_shape: Sequence[int], *_: Any) -> bool | str:
    return _fits(x, normalized_shape)


def _may_differentiate(gradient: Any, x: Any, normalized_shape: Sequence[int], *_: Any) -> bool | str:
    if gradient.shape != x.shape or gradient.dtype is not x.dtype:
        return "a gradient of another shape or dtype"
    return _fits(x, normalized_shape)


def _statistic(x: Array, normalized_shape: Sequence[int], dtype: np.dtype[Any] | None = None) -> Array:
    """Memory for one number per row."""
    outer = x.ndim - len(normalized_shape)
    return np.empty((*x.shape[:outer], *(1,) * len(normalized_shape)), dtype or x.dtype)


def _wide(x: Array) -> np.dtype[Any]:
    """The type that half precision is computed in, or the array's own."""
    return np.dtype("d" if x.dtype.char == "d" else "f")


@compiled_kernel("aten::native_layer_norm", size="layer_norm", when=_may_normalize)
def layer_norm(
    x: Array, normalized_shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    width, out = prod(normalized_shape), empty(x.shape, x.dtype)
    mean, rstd = _statistic(x, normalized_shape), _statistic(x, normalized_shape)
    _SOURCE.launch(
        "layer_norm", x.size // width, x, out if weight is None else weight, out if bias is None else bias, out, mean, rstd,
        width, float(eps), WEIGHT=weight is not None, BIAS=bias is not None, BLOCK=block_of(width),
    )  # fmt: skip
    return out, mean, rstd


@compiled_kernel("aten::native_layer_norm_backward", size="layer_norm_backward", when=_may_differentiate)
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
    wants_weight, wants_bias = output_mask[1] and weight is not None, output_mask[2] and bias is not None
    if wants_weight or wants_bias:
        parts = np.empty((2, ceil_div(rows, ROWS), width), _wide(x))
        _SOURCE.launch(
            "layer_norm_parameters", parts.shape[1], gradient, x, mean, rstd, parts[0], parts[1], rows, width,
            ROWS=ROWS, BLOCK=block,
        )  # fmt: skip
        for_weight = _total(parts[0], x, normalized_shape) if wants_weight else None
        for_bias = _total(parts[1], x, normalized_shape) if wants_bias else None
    return for_input, for_weight, for_bias


def _total(parts: Array, like: Array, shape: Sequence[int]) -> Array:
    """The sum over programs, rounded to the type of ``like``."""
    out = np.empty(shape, like.dtype)
    _SOURCE.launch("total_of_columns", ceil_div(out.size, 256), parts, out, len(parts), out.size, BLOCK=256)
    return out


@compiled_kernel("aten::_fused_rms_norm", size="rms_norm", when=_may_normalize)
def rms_norm(
    x: Array, normalized_shape: Sequence[int], weight: Array | None, eps: float | None
) -> tuple[Array, Array]:
    width, out, kind = prod(normalized_shape), empty(x.shape, x.dtype), _wide(x)
    rstd = _statistic(x, normalized_shape, kind)
    _SOURCE.launch(
        "rms_norm", x.size // width, x, out if weight is None else weight, out, rstd, width,
        float(np.finfo(kind).eps if eps is None else eps), WEIGHT=weight is not None, BLOCK=block_of(width),
    )  # fmt: skip
    return out, rstd


@compiled_kernel(
    "aten::_fused_rms_norm_backward", size="rms_norm_backward", when=_may_differentiate, mixed=True
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
        parts = np.empty((ceil_div(rows, ROWS), width), _wide(x))
        _SOURCE.launch(
            "rms_norm_parameters", len(parts), gradient, x, rstd, parts, rows, width, ROWS=ROWS, BLOCK=block
        )
        for_weight = _total(parts, x, normalized_shape)
    return for_input, for_weight
