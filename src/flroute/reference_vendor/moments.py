"""Variances and norms, in double precision and rounded once."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from flroute.reference_vendor.sums import accurate_sum
from flroute.reference_vendor.support import COMPLEX, FLOATS, Array, axes, count_over, narrow, quiet, wide
from flroute.vendor import kernel


def _real(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of the parts of a complex number, or of the number that is real."""
    return np.empty(0, dtype).real.dtype


def _squares(x: Array) -> Array:
    """|x|**2 in double precision."""
    if x.dtype.kind == "c":
        return np.square(wide(x.real)) + np.square(wide(x.imag))
    return np.square(wide(x))


def _moments(
    op: str, x: Array, dim: Sequence[int] | None, correction: float | None, keepdim: bool
) -> tuple[Any, Any]:
    """Variance and mean, both in double precision; without a degree of freedom a variance is infinite or NaN."""
    over = axes(dim, x.ndim)
    count = count_over(x, over)
    freedom = np.float64(max(count - (1 if correction is None else correction), 0))
    if freedom == 0:
        warnings.warn(
            f"{op}(): degrees of freedom is <= 0. Correction should be strictly less than the reduction factor (input numel "
            f"divided by output numel).",
            stacklevel=2,
        )
    mean = accurate_sum(x, over, True) / np.float64(count)
    variance = accurate_sum(_squares(x - mean), over, keepdim) / freedom
    return variance, mean if keepdim else mean.squeeze(over)


@kernel("aten::var_mean.correction", dtypes=(*FLOATS, *COMPLEX))
@quiet
def var_mean(
    x: Array, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Any, Any]:
    variance, mean = _moments("var_mean", x, dim, correction, keepdim)
    return variance.astype(_real(x.dtype)), narrow(mean, x)


@kernel("aten::var.correction", dtypes=(*FLOATS, *COMPLEX))
@quiet
def var(
    x: Array, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Any:
    return _moments("var", x, dim, correction, keepdim)[0].astype(_real(x.dtype))


@kernel("aten::std.correction", dtypes=(*FLOATS, *COMPLEX))
@quiet
def std(
    x: Array, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Any:
    return np.sqrt(_moments("std", x, dim, correction, keepdim)[0]).astype(_real(x.dtype))


@kernel("aten::std_mean.correction", dtypes=(*FLOATS, *COMPLEX))
@quiet
def std_mean(
    x: Array, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Any, Any]:
    variance, mean = _moments("std_mean", x, dim, correction, keepdim)
    return np.sqrt(variance).astype(_real(x.dtype)), narrow(mean, x)
