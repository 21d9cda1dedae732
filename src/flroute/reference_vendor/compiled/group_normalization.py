"""Group normalization and its gradients, with the kernels of batch normalization: each channel of a sample is one by itself.

What is normalized, a group of a sample, lies in one piece; numbers per group and per channel are numpy's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flroute.reference_vendor.compiled.batch_normalization import SHORTEST, dtypes_fit
from flroute.reference_vendor.compiled.launch import Array, Source, block_of, compiled_kernel, wide_type
from flroute.reference_vendor.memory import empty

_SOURCE = Source("batch_normalization", "common")


def _fits(x: Any, channels: int, positions: int, groups: int) -> bool | str:
    if x.numel() == 0 or groups < 1 or channels % groups:
        return f"{channels} channels in {groups} groups"
    return positions >= SHORTEST or f"{positions} positions in a channel"


def _may_normalize(
    x: Any, weight: Any, bias: Any, samples: int, channels: int, positions: int, groups: int, eps: float
) -> bool | str:
    fit = dtypes_fit(x, weight, bias)
    return _fits(x, channels, positions, groups) if fit is True else fit


def _may_differentiate(
    gradient: Any, x: Any, mean: Any, rstd: Any, weight: Any, samples: int, channels: int, positions: int, groups: int, *_: Any
) -> bool | str:  # fmt: skip
    if gradient.shape != x.shape or gradient.dtype is not x.dtype or mean.numel() != samples * groups:
        return "no gradient or statistics of this shape and dtype"
    fit = dtypes_fit(x, mean, rstd, weight)
    return _fits(x, channels, positions, groups) if fit is True else fit


def _block(width: int) -> int:
    return min(block_of(width), 1024)


@compiled_kernel("aten::native_group_norm", size="group_norm", when=_may_normalize, mixed=True)
def group_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    samples: int,
    channels: int,
    positions: int,
    groups: int,
    eps: float,
) -> tuple[Array, Array, Array]:
    size, kind = channels // groups * positions, wide_type(x)
    mean, variance = np.empty(samples * groups), np.empty(samples * groups)
    _SOURCE.launch("statistics", len(mean), x, mean, variance, 1, len(mean), size, BLOCK=_block(size))
    rstd = 1 / np.sqrt(variance + eps)
    centre, scale = (np.repeat(v, channels // groups) for v in (mean, rstd))
    if weight is not None:
        scale = (scale.reshape(samples, channels) * weight).reshape(-1)
    shift = scale if bias is None else np.tile(bias, samples)
    out = empty(x.shape, x.dtype)
    _SOURCE.launch(
        "normalize", samples * channels, x, *(v.astype(kind) for v in (centre, scale, shift)), out, samples * channels,
        positions, BIAS=bias is not None, BLOCK=_block(positions),
    )  # fmt: skip
    kept = (samples, groups)
    return out, mean.astype(kind).reshape(kept), rstd.astype(kind).reshape(kept)


@compiled_kernel(
    "aten::native_group_norm_backward", size="group_norm_backward", when=_may_differentiate, mixed=True
)
def group_norm_backward(
    gradient: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None,
    samples: int,
    channels: int,
    positions: int,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    """With u = (x - mean) rstd and g = gradient * weight, a group's gradient is rstd (g - mean(g) - u mean(g u))."""
    rows, grouped, kind = samples * channels, (samples, groups, channels // groups), wide_type(x)
    centre = np.repeat(mean.reshape(-1), channels // groups)
    root = np.repeat(np.float64(rstd.reshape(-1)), channels // groups).reshape(grouped)
    total, products = np.empty(rows), np.empty(rows)
    _SOURCE.launch(
        "sums", rows, gradient, x, centre, total, products, 1, rows, positions, BLOCK=_block(positions)
    )
    total, products = total.reshape(grouped), products.reshape(grouped) * root
    for_input = None
    if output_mask[0]:
        weights = np.ones((1, *grouped[1:])) if weight is None else weight.reshape(1, *grouped[1:])
        count = channels // groups * positions
        shift = (total * weights).sum(2, keepdims=True) * root / count
        slope = (products * weights).sum(2, keepdims=True) * root * root / count
        factors = (v.astype(kind).reshape(-1) for v in (root * weights, shift, slope))
        for_input = empty(x.shape, x.dtype)
        _SOURCE.launch(
            "differentiate", rows, gradient, x, centre, *factors, for_input, rows, positions, TRAIN=True,
            BLOCK=_block(positions),
        )  # fmt: skip
    return (
        for_input,
        products.sum(0).reshape(-1).astype(kind) if output_mask[1] else None,
        total.sum(0).reshape(-1).astype(kind) if output_mask[2] else None,
    )
