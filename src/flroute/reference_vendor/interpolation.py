"""Interpolation: nearest, linear, cubic and antialiased, in one to three dimensions.

All are separable: along each dimension an output is a weighted sum of a few inputs. So one primitive resamples a dimension
(``resampling.py``), and the gradient is that sum seen from the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from flroute.reference_vendor.resampling import (
    Taps,
    antialiased,
    cubic,
    lanczos,
    linear,
    nearest,
    pillow_cubic,
    triangle,
)
from flroute.reference_vendor.support import FLOATS, Array, Result, narrow, quiet
from flroute.vendor import Unsupported, kernel

Scale: TypeAlias = float | None
Plan: TypeAlias = Callable[[int, int, Scale], Taps]


def _taps(
    input_size: Sequence[int], output_size: Sequence[int], scales: Sequence[Scale], plan: Plan
) -> list[Taps]:
    """How to resample each spatial dimension.

    Raises:
        Unsupported: a size the host refuses.
    """
    if len(input_size) != len(output_size) + 2 or 0 in input_size[1:] or min(output_size) < 1:
        raise Unsupported(f"interpolation of shape {tuple(input_size)} to {tuple(output_size)}")
    return [plan(*sizes) for sizes in zip(input_size[2:], output_size, scales, strict=True)]


def _resample(x: Array, output_size: Sequence[int], scales: Sequence[Scale], plan: Plan) -> Result:
    taps = _taps(x.shape, output_size, scales, plan)
    result = x
    for axis in reversed(range(2, x.ndim)):
        result = taps[axis - 2].forward(result, axis)
    return result


def _resample_backward(
    gradient: Array,
    output_size: Sequence[int],
    input_size: Sequence[int],
    scales: Sequence[Scale],
    plan: Plan,
) -> Result:
    taps = _taps(input_size, output_size, scales, plan)
    if gradient.shape != (*input_size[:2], *output_size):
        raise Unsupported(f"a gradient of {gradient.shape} for an input of {tuple(input_size)}")
    result = gradient
    for axis in range(2, gradient.ndim):
        result = taps[axis - 2].backward(result, axis)
    return narrow(result, gradient)


def _nearest(x: Array, exact: bool) -> Plan:
    return partial(nearest, exact=exact, dtype=x.dtype if x.dtype.kind == "f" else np.dtype(np.float32))


def _nearest_backward(exact: bool) -> Plan:
    """The host's gradient computes the index in single precision whatever the dtype, and knows two sizes by heart."""

    def plan(inputs: int, outputs: int, scale: Scale) -> Taps:
        by_heart = not exact and outputs in (inputs, 2 * inputs)
        return nearest(inputs, outputs, None if by_heart else scale, exact=exact, dtype=np.dtype(np.float32))

    return plan


NEAREST = (*FLOATS, "uint8")


# -- nearest ------------------------------------------------------------------------------------------


@kernel("aten::upsample_nearest1d", dtypes=NEAREST)
@quiet
def nearest1d(x: Array, output_size: Sequence[int], scales: Scale = None) -> Result:
    return _resample(x, output_size, (scales,), _nearest(x, False))


@kernel("aten::upsample_nearest1d_backward", dtypes=FLOATS)
@quiet
def nearest1d_backward(
    gradient: Array, output_size: Sequence[int], input_size: Sequence[int], scales: Scale = None
) -> Result:
    return _resample_backward(gradient, output_size, input_size, (scales,), _nearest_backward(False))


@kernel("aten::upsample_nearest2d", dtypes=NEAREST)
@quiet
def nearest2d(x: Array, output_size: Sequence[int], scales_h: Scale = None, scales_w: Scale = None) -> Result:
    return _resample(x, output_size, (scales_h, scales_w), _nearest(x, False))


@kernel("aten::upsample_nearest2d_backward", dtypes=FLOATS)
@quiet
def nearest2d_backward(
    gradient: Array,
    output_size: Sequence[int],
    input_size: Sequence[int],
    scales_h: Scale = None,
    scales_w: Scale = None,
) -> Result:
    return _resample_backward(
        gradient, output_size, input_size, (scales_h, scales_w), _nearest_backward(False)
    )


@kernel("aten::upsample_nearest3d", dtypes=NEAREST)
@quiet
def nearest3d(
    x: Array,
    output_size: Sequence[int],
    scales_d: Scale = None,
    scales_h: Scale = None,
    scales_w: Scale = None,
) -> Result:
    return _resample(x, output_size, (scales_d, scales_h, scales_w), _nearest(x, False))


@kernel("aten::upsample_nearest3d_backward", dtypes=FLOATS)
@quiet
def nearest3d_backward(
    gradient: Array,
    output_size: Sequence[int],
    input_size: Sequence[int],
    scales_d: Scale = None,
    scales_h: Scale = None,
    scales_w: Scale = None,
) -> Result:
    return _resample_backward(
        gradient, output_size, input_size, (scales_d, scales_h, scales_w), _nearest_backward(False)
    )


@kernel("aten::_upsample_nearest_exact1d", dtypes=NEAREST)
@quiet
def nearest_exact1d(x: Array, output_size: Sequence[int], scales: Scale = None) -> Result:
    return _resample(x, output_size, (scales,), _nearest(x, True))


@kernel("aten::_upsample_nearest_exact1d_backward", dtypes=FLOATS)
@quiet
def nearest_exact1d_backward(
    gradient: Array, output_size: Sequence[int], input_size: Sequence[int], scales: Scale = None
) -> Result:
    return _resample_backward(gradient, output_size, input_size, (scales,), _nearest_backward(True))


@kernel("aten::_upsample_nearest_exact2d", dtypes=NEAREST)
@quiet
def nearest_exact2d(
    x: Array, output_size: Sequence[int], scales_h: Scale = None, scales_w: Scale = None
) -> Result:
    return _resample(x, output_size, (scales_h, scales_w), _nearest(x, True))


@kernel("aten::_upsample_nearest_exact2d_backward", dtypes=FLOATS)
@quiet
def nearest_exact2d_backward(
    gradient: Array,
    output_size: Sequence[int],
    input_size: Sequence[int],
    scales_h: Scale = None,
    scales_w: Scale = None,
) -> Result:
    return _resample_backward(
        gradient, output_size, input_size, (scales_h, scales_w), _nearest_backward(True)
    )


@kernel("aten::_upsample_nearest_exact3d", dtypes=NEAREST)
@quiet
def nearest_exact3d(
    x: Array,
    output_size: Sequence[int],
    scales_d: Scale = None,
    scales_h: Scale = None,
    scales_w: Scale = None,
) -> Result:
    return _resample(x, output_size, (scales_d, scales_h, scales_w), _nearest(x, True))


@kernel("aten::_upsample_nearest_exact3d_backward", dtypes=FLOATS)
@quiet
def nearest_exact3d_backward(
    gradient: Array,
    output_size: Sequence[int],
    input_size: Sequence[int],
    scales_d: Scale = None,
    scales_h: Scale = None,
    scales_w: Scale = None,
) -> Result:
    return _resample_backward(
        gradient, output_size, input_size, (scales_d, scales_h, scales_w), _nearest_backward(True)
    )


# -- linear and cubic ---------------------------------------------------------------------------------


def _linear(align_corners: bool) -> Plan:
    return partial(linear, align_corners)


def _cubic(align_corners: bool) -> Plan:
    return partial(cubic, align_corners)


@kernel("aten::upsample_linear1d", dtypes=FLOATS)
@quiet
def linear1d(x: Array, output_size: Sequence[int], align_corners: bool, scales: Scale = None) -> Result:
    return _resample(x, output_size, (scales,), _linear(align_corners))


@kernel("aten::upsample_linear1d_backward", dtypes=FLOATS)
@quiet
def linear1d_backward(
    gradient: Array,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    scales: Scale = None,
) -> Result:
    return _resample_backward(gradient, output_size, input_size, (scales,), _linear(align_corners))


@kernel("aten::upsample_bilinear2d", dtypes=FLOATS)
@quiet
def bilinear2d(
    x: Array, output_size: Sequence[int], align_corners: bool, scales_h: Scale = None, scales_w: Scale = None
) -> Result:
    return _resample(x, output_size, (scales_h, scales_w), _linear(align_corners))


@kernel("aten::upsample_bilinear2d_backward", dtypes=FLOATS)
@quiet
def bilinear2d_backward(
    gradient: Array,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    scales_h: Scale = None,
    scales_w: Scale = None,
) -> Result:
    return _resample_backward(gradient, output_size, input_size, (scales_h, scales_w), _linear(align_corners))


@kernel("aten::upsample_trilinear3d", dtypes=FLOATS)
@quiet
def trilinear3d(
    x: Array,
    output_size: Sequence[int],
    align_corners: bool,
    scales_d: Scale = None,
    scales_h: Scale = None,
    scales_w: Scale = None,
) -> Result:
    return _resample(x, output_size, (scales_d, scales_h, scales_w), _linear(align_corners))


@kernel("aten::upsample_trilinear3d_backward", dtypes=FLOATS)
@quiet
def trilinear3d_backward(
    gradient: Array,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    scales_d: Scale = None,
    scales_h: Scale = None,
    scales_w: Scale = None,
) -> Result:
    return _resample_backward(
        gradient, output_size, input_size, (scales_d, scales_h, scales_w), _linear(align_corners)
    )


@kernel("aten::upsample_bicubic2d", dtypes=FLOATS)
@quiet
def bicubic2d(
    x: Array, output_size: Sequence[int], align_corners: bool, scales_h: Scale = None, scales_w: Scale = None
) -> Result:
    return _resample(x, output_size, (scales_h, scales_w), _cubic(align_corners))


@kernel("aten::upsample_bicubic2d_backward", dtypes=FLOATS)
@quiet
def bicubic2d_backward(
    gradient: Array,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    scales_h: Scale = None,
    scales_w: Scale = None,
) -> Result:
    return _resample_backward(gradient, output_size, input_size, (scales_h, scales_w), _cubic(align_corners))


# -- antialiased --------------------------------------------------------------------------------------


def _antialiased(align_corners: bool, filter_of: Any, reach: float) -> Plan:
    return partial(antialiased, align_corners, filter_of, reach)


@kernel("aten::_upsample_bilinear2d_aa", dtypes=FLOATS)
@quiet
def bilinear2d_antialiased(
    x: Array, output_size: Sequence[int], align_corners: bool, scales_h: Scale = None, scales_w: Scale = None
) -> Result:
    return _resample(x, output_size, (scales_h, scales_w), _antialiased(align_corners, triangle, 1))


@kernel("aten::_upsample_bilinear2d_aa_backward", dtypes=FLOATS)
@quiet
def bilinear2d_antialiased_backward(
    gradient: Array,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    scales_h: Scale = None,
    scales_w: Scale = None,
) -> Result:
    return _resample_backward(
        gradient, output_size, input_size, (scales_h, scales_w), _antialiased(align_corners, triangle, 1)
    )


@kernel("aten::_upsample_bicubic2d_aa", dtypes=FLOATS)
@quiet
def bicubic2d_antialiased(
    x: Array, output_size: Sequence[int], align_corners: bool, scales_h: Scale = None, scales_w: Scale = None
) -> Result:
    return _resample(x, output_size, (scales_h, scales_w), _antialiased(align_corners, pillow_cubic, 2))


@kernel("aten::_upsample_bicubic2d_aa_backward", dtypes=FLOATS)
@quiet
def bicubic2d_antialiased_backward(
    gradient: Array,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    scales_h: Scale = None,
    scales_w: Scale = None,
) -> Result:
    return _resample_backward(
        gradient, output_size, input_size, (scales_h, scales_w), _antialiased(align_corners, pillow_cubic, 2)
    )


@kernel("aten::_upsample_lanczos2d_aa", dtypes=FLOATS)
@quiet
def lanczos2d_antialiased(
    x: Array, output_size: Sequence[int], align_corners: bool, scales_h: Scale = None, scales_w: Scale = None
) -> Result:
    return _resample(x, output_size, (scales_h, scales_w), _antialiased(align_corners, lanczos, 3))


@kernel("aten::_upsample_lanczos2d_aa_backward", dtypes=FLOATS)
@quiet
def lanczos2d_antialiased_backward(
    gradient: Array,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    scales_h: Scale = None,
    scales_w: Scale = None,
) -> Result:
    return _resample_backward(
        gradient, output_size, input_size, (scales_h, scales_w), _antialiased(align_corners, lanczos, 3)
    )
