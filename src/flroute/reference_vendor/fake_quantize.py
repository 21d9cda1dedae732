"""Quantization aware training: numbers rounded to the grid that integers of few bits would give, still as floats."""

from __future__ import annotations

from typing import Any

import numpy as np

from flroute.reference_vendor.support import FLOATS, Array, Result, quiet
from flroute.vendor import Unsupported, kernel


def _on_grid(x: Array, scale: Any, zero_point: Any, low: int, high: int) -> tuple[Result, Result]:
    """(clamp(round(x / scale) + zero_point) - zero_point) * scale, and where nothing was clamped.

    Like the host, by 1 / scale, and both in float32 whatever ``x`` is. A NaN counts as below every integer.
    """
    scale = np.asarray(scale, np.float32)
    steps = np.rint(x * (np.float32(1) / scale)) + zero_point
    steps = np.where(np.isnan(steps), -np.inf, steps)
    inside = (steps >= low) & (steps <= high)
    grid = (np.clip(steps, low, high) - zero_point).astype(np.float32) * scale
    return grid.astype(x.dtype), inside


def _check_range(low: int, high: int, zero_points: Any) -> None:
    outside = np.asarray(zero_points)
    if low > high or ((outside < low) | (outside > high)).any():
        raise Unsupported(f"zero points {zero_points} for integers from {low} to {high}")


@kernel("aten::fake_quantize_per_tensor_affine_cachemask", dtypes=FLOATS)
@quiet
def fake_quantize_per_tensor(
    x: Array, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> tuple[Result, Result]:
    _check_range(quant_min, quant_max, zero_point)
    return _on_grid(x, scale, zero_point, quant_min, quant_max)


@kernel(
    "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    dtypes=(*FLOATS, "int32", "int64"),
    mixed=True,
)
@quiet
def fake_quantize_per_tensor_of_tensors(
    x: Array, scale: Array, zero_point: Array, fake_quant_enabled: Array, quant_min: int, quant_max: int
) -> tuple[Result, Result]:
    """Scale and zero point in tensors, as observers keep them, and whether to quantize at all."""
    if x.dtype.kind != "f" or scale.dtype.kind != "f" or zero_point.dtype.kind != "i" or scale.size != 1:
        raise Unsupported(f"{x.dtype} with a scale of {scale.dtype} and a zero point of {zero_point.dtype}")
    if not fake_quant_enabled.reshape(-1)[0]:
        return x.copy(), np.ones(x.shape, bool)
    return _on_grid(x, scale.reshape(()), int(zero_point.reshape(())), quant_min, quant_max)


@kernel("aten::fake_quantize_per_channel_affine_cachemask", dtypes=(*FLOATS, "int32"), mixed=True)
@quiet
def fake_quantize_per_channel(
    x: Array, scale: Array, zero_point: Array, axis: int, quant_min: int, quant_max: int
) -> tuple[Result, Result]:
    """A scale and a zero point for each slice along ``axis``."""
    if x.dtype.kind != "f" or scale.dtype != np.float32 or zero_point.dtype != np.int32:
        raise Unsupported(f"{x.dtype} with scales of {scale.dtype} and zero points of {zero_point.dtype}")
    if not 0 <= axis < x.ndim or scale.shape != (x.shape[axis],) or zero_point.shape != scale.shape:
        raise Unsupported(f"scales of shape {scale.shape} along dimension {axis} of shape {x.shape}")
    _check_range(quant_min, quant_max, zero_point)
    column = (-1, *(1,) * (x.ndim - 1 - axis))
    return _on_grid(x, scale.reshape(column), zero_point.reshape(column), quant_min, quant_max)
