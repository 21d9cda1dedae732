"""Batch normalization and its gradients: sums and the last pass compiled, what is one number per channel in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from flroute.reference_vendor.compiled.launch import Array, Source, block_of, compiled_kernel, wide_type
from flroute.reference_vendor.float32_parameters import parameters_fit
from flroute.reference_vendor.half_precision import HALVES
from flroute.reference_vendor.memory import empty
from flroute.reference_vendor.normalization import update_running

SHORTEST = 16
"""Positions of a channel from which on a program per channel is faster than numpy."""
_SOURCE = Source("batch_normalization", "common")


def dtypes_fit(x: Any, *parameters: Any) -> bool | str:
    """Whether nothing but data is of half precision, for a kernel whose numbers per channel are numpy's."""
    if x.dtype in HALVES and all(p is None or p.dtype is x.dtype for p in parameters):
        return f"{x.dtype} throughout"
    return parameters_fit(x, *parameters)


def _fits(x: Any, *parameters: Any) -> bool | str:
    if (fit := dtypes_fit(x, *parameters)) is not True:
        return fit
    if x.ndim < 3 or x.numel() == 0:
        return "not (samples, channels, positions)"
    width = prod(x.shape[2:])
    return width >= SHORTEST or f"{width} positions in a channel"


def _may_normalize(
    x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, *_: Any
) -> bool | str:
    if not training and running_mean is None:
        return "no statistics"
    return _fits(x, weight, bias, running_mean, running_var)


def _may_differentiate(
    gradient: Any,
    x: Any,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    save_mean: Any,
    save_invstd: Any,
    train: bool,
    *_: Any,
) -> bool | str:
    mean, rstd = (save_mean, save_invstd) if train else (running_mean, running_var)
    if gradient.shape != x.shape or gradient.dtype is not x.dtype or mean is None or rstd is None:
        return "no gradient or statistics of this shape and dtype"
    return _fits(x, weight, running_mean, running_var, save_mean, save_invstd)


def _geometry(x: Array) -> tuple[int, int, int, int]:
    """Samples, channels, positions, and the block they are taken in."""
    width = prod(x.shape[2:])
    return x.shape[0], x.shape[1], width, min(block_of(width), 1024)


@compiled_kernel(
    "aten::native_batch_norm",
    "aten::_native_batch_norm_legit",
    size="batch_norm",
    when=_may_normalize,
    mixed=True,
)
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
    samples, channels, width, block = _geometry(x)
    kind = wide_type(x)
    if training:
        mean, variance = np.empty(channels), np.empty(channels)
        _SOURCE.launch("statistics", channels, x, mean, variance, samples, channels, width, BLOCK=block)
        count = samples * width
        update_running(running_mean, mean, momentum)
        with np.errstate(
            divide="ignore", invalid="ignore"
        ):  # the variance of one element is NaN, as on the host
            update_running(running_var, variance * np.true_divide(count, count - 1), momentum)
    else:
        mean, variance = np.float64(running_mean), np.float64(running_var)  # type: ignore[assignment]
    rstd = 1 / np.sqrt(variance + eps)
    centre, scale = mean.astype(kind), (rstd if weight is None else rstd * weight).astype(kind)
    out = empty(x.shape, x.dtype)
    _SOURCE.launch(
        "normalize", samples * channels, x, centre, scale, scale if bias is None else bias, out, channels, width,
        BIAS=bias is not None, BLOCK=block,
    )  # fmt: skip
    nothing = np.empty(0, kind)
    return (out, centre, rstd.astype(kind)) if training else (out, nothing, nothing.copy())


@compiled_kernel(
    "aten::native_batch_norm_backward", size="batch_norm_backward", when=_may_differentiate, mixed=True
)
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
    """With u = (x - mean) rstd, a channel's gradient is weight rstd (g - mean(g) - u mean(g u))."""
    samples, channels, width, block = _geometry(x)
    kind = wide_type(x)
    mean: Any = save_mean if train else running_mean
    rstd: Any = np.float64(save_invstd) if train else 1 / np.sqrt(np.float64(running_var) + eps)
    total, products = np.empty(channels), np.empty(channels)
    _SOURCE.launch(
        "sums", channels, gradient, x, mean, total, products, samples, channels, width, BLOCK=block
    )
    for_input = None
    if output_mask[0]:
        scale, count = rstd if weight is None else rstd * weight, samples * width
        factors = (scale, total * scale / count, products * rstd * rstd * scale / count)
        for_input = empty(x.shape, x.dtype)
        _SOURCE.launch(
            "differentiate", samples * channels, gradient, x, mean, *(f.astype(kind) for f in factors), for_input,
            channels, width, TRAIN=train, BLOCK=block,
        )  # fmt: skip
    return (
        for_input,
        (products * rstd).astype(kind) if output_mask[1] else None,
        total.astype(kind) if output_mask[2] else None,
    )
