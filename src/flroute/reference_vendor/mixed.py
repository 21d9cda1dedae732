"""Arithmetic, comparison and selection of operands of several dtypes, and complex arithmetic.

What these kernels get are calls that the kernels of one dtype leave: ``int64 + float32``, ``int32 * 1.5``, ``bool + 1``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flroute.reference_vendor import comparison, elementwise, rearranging, sets
from flroute.reference_vendor.promotion import promoted
from flroute.reference_vendor.support import Array, Result, quiet
from flroute.vendor import Unsupported, kernel


@kernel("aten::add.Tensor")
@quiet
def add_mixed(x: Any, y: Any, *, alpha: Any = 1) -> Result:
    x, y = promoted(x, y, complex_too=True)
    if x.dtype.kind == "f":
        return elementwise.add(x, y, alpha=alpha)
    if x.dtype.kind == "c" or alpha == 1:
        return np.add(x, y if alpha == 1 else y * x.dtype.type(alpha))
    return elementwise.add_integers(x, y, alpha=alpha)


@kernel("aten::sub.Tensor")
@quiet
def sub_mixed(x: Any, y: Any, *, alpha: Any = 1) -> Result:
    for operand in (x, y):
        elementwise.check_no_bool(operand)
        if isinstance(operand, np.ndarray) and operand.dtype.kind == "b":
            raise Unsupported("a subtraction of bool")
    x, y = promoted(x, y, complex_too=True)
    if x.dtype.kind == "f":
        return elementwise.sub(x, y, alpha=alpha)
    if x.dtype.kind == "c":
        return np.subtract(x, y if alpha == 1 else y * x.dtype.type(alpha))
    return elementwise.sub_integers(x, y, alpha=alpha)


@kernel("aten::rsub.Tensor")
def rsub_mixed(x: Any, y: Any, *, alpha: Any = 1) -> Result:
    return sub_mixed(y, x, alpha=alpha)


@kernel("aten::mul.Tensor")
@quiet
def mul_mixed(x: Any, y: Any) -> Result:
    return np.multiply(*promoted(x, y, complex_too=True))


@kernel("aten::div.Tensor")
@quiet
def div_mixed(x: Any, y: Any) -> Result:
    return np.true_divide(*promoted(x, y, floats=True, complex_too=True))


@kernel("aten::maximum")
def maximum_mixed(x: Array, y: Array) -> Result:
    return np.maximum(*promoted(x, y))


@kernel("aten::minimum")
def minimum_mixed(x: Array, y: Array) -> Result:
    return np.minimum(*promoted(x, y))


@kernel("aten::clamp", "aten::clamp.Tensor")
@quiet
def clamp_mixed(x: Array, min: Any = None, max: Any = None) -> Result:
    given = [limit for limit in (min, max) if limit is not None]
    x, *limits = promoted(x, *given)
    if x.dtype.kind == "b":
        raise Unsupported("a range of bool")
    result = x if min is None else np.maximum(x, limits[0])
    return result if max is None else np.minimum(result, limits[-1])


@kernel("aten::clamp_min", "aten::clamp_min.Tensor")
@quiet
def clamp_min_mixed(x: Array, min: Any) -> Result:
    return np.maximum(*promoted(x, min))


@kernel("aten::clamp_max", "aten::clamp_max.Tensor")
@quiet
def clamp_max_mixed(x: Array, max: Any) -> Result:
    return np.minimum(*promoted(x, max))


@kernel("aten::addcmul")
@quiet
def addcmul_mixed(x: Array, y: Array, z: Array, *, value: Any = 1) -> Result:
    x, y, z = promoted(x, y, z, complex_too=True)
    if x.dtype.kind in "iub" and type(value) is not int:
        raise Unsupported(f"the number {value} with tensors of {x.dtype}")
    return x + y * x.dtype.type(value) * z


@kernel("aten::addcdiv")
@quiet
def addcdiv_mixed(x: Array, y: Array, z: Array, *, value: Any = 1) -> Result:
    """The host divides no integers here, so two of the dtypes are floating."""
    if y.dtype.kind in "iub" and z.dtype.kind in "iub":
        raise Unsupported("a division of integers")
    x, y, z = promoted(x, y, z, complex_too=True)
    return x + y * x.dtype.type(value) / z


@kernel("aten::cat")
def cat_mixed(arrays: Sequence[Array], dim: int = 0) -> Result:
    return rearranging.cat(promoted(*arrays, complex_too=True), dim)


# -- comparison ---------------------------------------------------------------------------------------


@kernel("aten::eq.Tensor", "aten::eq.Scalar")
def eq_mixed(x: Array, y: Any) -> Result:
    return np.equal(*promoted(x, y, complex_too=True))


@kernel("aten::ne.Tensor", "aten::ne.Scalar")
def ne_mixed(x: Array, y: Any) -> Result:
    return np.not_equal(*promoted(x, y, complex_too=True))


@kernel("aten::lt.Tensor", "aten::lt.Scalar")
def lt_mixed(x: Array, y: Any) -> Result:
    return np.less(*promoted(x, y))


@kernel("aten::le.Tensor", "aten::le.Scalar")
def le_mixed(x: Array, y: Any) -> Result:
    return np.less_equal(*promoted(x, y))


@kernel("aten::gt.Tensor", "aten::gt.Scalar")
def gt_mixed(x: Array, y: Any) -> Result:
    return np.greater(*promoted(x, y))


@kernel("aten::ge.Tensor", "aten::ge.Scalar")
def ge_mixed(x: Array, y: Any) -> Result:
    return np.greater_equal(*promoted(x, y))


@kernel("aten::equal")
def equal_mixed(x: Array, y: Array) -> bool:
    return sets.equal(*promoted(x, y, complex_too=True))


@kernel("aten::logical_and")
def logical_and_mixed(x: Array, y: Array) -> Result:
    return np.logical_and(x, y)


@kernel("aten::logical_or")
def logical_or_mixed(x: Array, y: Array) -> Result:
    return np.logical_or(x, y)


@kernel("aten::logical_xor")
def logical_xor_mixed(x: Array, y: Array) -> Result:
    return np.logical_xor(x, y)


@kernel("aten::where.self")
def where_mixed(condition: Array, x: Array, y: Array) -> Result:
    if condition.dtype.kind != "b":
        raise Unsupported(f"a condition of {condition.dtype}")
    x, y = promoted(x, y, complex_too=True)
    return np.where(condition, x, y) if x.dtype.kind == "c" else comparison.where(condition, x, y)
