"""Comparisons, logic and selection. Comparing with NaN sets no floating-point flag in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.support import (
    FLOATS,
    REALS,
    Array,
    Result,
    check_scalars,
    select,
)
from flroute.vendor import kernel


@kernel("aten::eq.Tensor", "aten::eq.Scalar", dtypes=REALS)
def eq(x: Array, y: Any) -> Result:
    check_scalars(x.dtype, y)
    return np.equal(x, y)


@kernel("aten::ne.Tensor", "aten::ne.Scalar", dtypes=REALS)
def ne(x: Array, y: Any) -> Result:
    check_scalars(x.dtype, y)
    return np.not_equal(x, y)


@kernel("aten::lt.Tensor", "aten::lt.Scalar", dtypes=REALS)
def lt(x: Array, y: Any) -> Result:
    check_scalars(x.dtype, y)
    return np.less(x, y)


@kernel("aten::le.Tensor", "aten::le.Scalar", dtypes=REALS)
def le(x: Array, y: Any) -> Result:
    check_scalars(x.dtype, y)
    return np.less_equal(x, y)


@kernel("aten::gt.Tensor", "aten::gt.Scalar", dtypes=REALS)
def gt(x: Array, y: Any) -> Result:
    check_scalars(x.dtype, y)
    return np.greater(x, y)


@kernel("aten::ge.Tensor", "aten::ge.Scalar", dtypes=REALS)
def ge(x: Array, y: Any) -> Result:
    check_scalars(x.dtype, y)
    return np.greater_equal(x, y)


# The functional ops give bool; `logical_and_` on another dtype is left to the router's adapter.
@kernel("aten::logical_and", dtypes=REALS)
def logical_and(x: Array, y: Array) -> Result:
    return np.logical_and(x, y)


@kernel("aten::logical_or", dtypes=REALS)
def logical_or(x: Array, y: Array) -> Result:
    return np.logical_or(x, y)


@kernel("aten::logical_xor", dtypes=REALS)
def logical_xor(x: Array, y: Array) -> Result:
    return np.logical_xor(x, y)


@kernel("aten::logical_not", dtypes=REALS)
def logical_not(x: Array) -> Result:
    return np.logical_not(x)


@kernel("aten::isnan", dtypes=REALS)
def isnan(x: Array) -> Result:
    return np.isnan(x)


@kernel("aten::isinf", dtypes=REALS)
def isinf(x: Array) -> Result:
    return np.isinf(x)


@kernel("aten::isfinite", dtypes=FLOATS)
def isfinite(x: Array) -> Result:
    return np.isfinite(x)


def _bool_condition(condition: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> bool | str:
    if condition.dtype is not torch.bool:
        return "the condition is not bool"
    if x.dtype is not y.dtype:
        return "the choices have different dtypes"
    return True


@kernel("aten::where.self", dtypes=(*REALS, "float16", "bfloat16"), mixed=True, when=_bool_condition)
def where(condition: Array, x: Array, y: Array) -> Result:
    return select(condition, x, y)
