"""RMS normalization; the mean of squares in double precision. Math: Zhang and Sennrich, https://arxiv.org/abs/1910.07467."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from flroute.reference_vendor.sums import accurate_sum
from flroute.reference_vendor.support import Array, narrow, quiet
from flroute.vendor import kernel

SINGLE_AND_DOUBLE = ("float32", "float64")
"""Half precision saves its root in float32: flroute splits it into other ops, which are routed."""


@kernel("aten::_fused_rms_norm", dtypes=SINGLE_AND_DOUBLE)
@quiet
def rms_norm(
    x: Array, normalized_shape: Sequence[int], weight: Array | None, eps: float | None
) -> tuple[Array, Array]:
    """x / sqrt(mean(x^2) + eps) * weight; what it is divided by is saved as its inverse."""
    over = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    eps = float(np.finfo(x.dtype).eps) if eps is None else eps
    rstd = 1 / np.sqrt(accurate_sum(np.square(x), over, True) / prod(normalized_shape) + eps)
    scaled = x * narrow(rstd, x)
    if weight is not None:
        scaled *= weight
    return scaled, narrow(rstd, x)


@kernel("aten::_fused_rms_norm_backward", dtypes=SINGLE_AND_DOUBLE)
@quiet
def rms_norm_backward(
    gradient: Array,
    x: Array,
    normalized_shape: Sequence[int],
    rstd: Array,
    weight: Array | None,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None]:
    """With u = x rstd and g = gradient * weight: rstd (g - u mean(g u)), and the sum of gradient * u over the rows."""
    outer = x.ndim - len(normalized_shape)
    over, normalized = tuple(range(outer, x.ndim)), x * rstd
    for_input = for_weight = None
    if output_mask[0]:
        scaled = gradient if weight is None else gradient * weight
        slope = accurate_sum(scaled * normalized, over, True) / prod(normalized_shape)
        for_input = normalized * narrow(-slope, x)
        for_input += scaled
        for_input *= rstd
    if output_mask[1] and weight is not None:
        for_weight = narrow(accurate_sum(gradient * normalized, tuple(range(outer)), False), x)
    return for_input, for_weight
