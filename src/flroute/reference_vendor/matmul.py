"""Matrix products, on numpy's BLAS. A transposed operand costs no copy."""

from __future__ import annotations

import numpy as np

from flroute.reference_vendor.memory import LARGE, empty
from flroute.reference_vendor.support import COMPLEX, FLOATS, INTEGERS, Array, Result, check_scalars, fast
from flroute.vendor import Unsupported, kernel

_NUMBERS = (*FLOATS, *COMPLEX, *INTEGERS)


def _product(x: Array, y: Array, elements: int) -> Result:
    """The product, of so many elements, of two matrices or of each two of a batch."""
    if elements * x.itemsize < LARGE:
        return fast.run(np.matmul, x, y)
    return fast.run(np.matmul, x, y, out=empty((*x.shape[:-1], y.shape[-1]), x.dtype))


@kernel("aten::mm", dtypes=_NUMBERS)
def mm(x: Array, y: Array) -> Result:
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[0]:
        raise Unsupported(f"mm of shapes {x.shape} and {y.shape}")
    return _product(x, y, x.shape[0] * y.shape[1])


@kernel("aten::bmm", dtypes=_NUMBERS)
def bmm(x: Array, y: Array) -> Result:
    if x.ndim != 3 or y.ndim != 3 or x.shape[0] != y.shape[0] or x.shape[2] != y.shape[1]:
        raise Unsupported(f"bmm of shapes {x.shape} and {y.shape}")
    return _product(x, y, x.shape[0] * x.shape[1] * y.shape[2])


@kernel("aten::mv", dtypes=_NUMBERS)
def mv(matrix: Array, vector: Array) -> Result:
    if matrix.ndim != 2 or vector.ndim != 1 or matrix.shape[1] != vector.shape[0]:
        raise Unsupported(f"mv of shapes {matrix.shape} and {vector.shape}")
    return fast.run(np.matmul, matrix, vector)


@kernel("aten::dot", dtypes=_NUMBERS)
def dot(x: Array, y: Array) -> Result:
    if x.ndim != 1 or x.shape != y.shape:
        raise Unsupported(f"dot of shapes {x.shape} and {y.shape}")
    return fast.run(np.matmul, x, y)


@kernel("aten::vdot", dtypes=_NUMBERS)
def vdot(x: Array, y: Array) -> Result:
    return dot(np.conjugate(x) if x.dtype.kind == "c" else x, y)


@kernel("aten::addmm", dtypes=_NUMBERS)
def addmm(bias: Array, x: Array, y: Array, *, beta: float = 1, alpha: float = 1) -> Result:
    return _add_to(mm(x, y), bias, beta, alpha)


@kernel("aten::baddbmm", dtypes=_NUMBERS)
def baddbmm(bias: Array, x: Array, y: Array, *, beta: float = 1, alpha: float = 1) -> Result:
    return _add_to(bmm(x, y), bias, beta, alpha)


@kernel("aten::addmv", dtypes=_NUMBERS)
def addmv(bias: Array, matrix: Array, vector: Array, *, beta: float = 1, alpha: float = 1) -> Result:
    return _add_to(mv(matrix, vector), bias, beta, alpha)


@kernel("aten::addbmm", dtypes=_NUMBERS)
def addbmm(bias: Array, x: Array, y: Array, *, beta: float = 1, alpha: float = 1) -> Result:
    """The products of a batch, added up: one product of the matrices side by side."""
    if x.ndim != 3 or y.ndim != 3 or x.shape[0] != y.shape[0] or x.shape[2] != y.shape[1]:
        raise Unsupported(f"addbmm of shapes {x.shape} and {y.shape}")
    batch, rows, inner = x.shape
    beside = x.transpose(1, 0, 2).reshape(rows, batch * inner)
    return _add_to(mm(beside, y.reshape(batch * inner, y.shape[2])), bias, beta, alpha)


@kernel("aten::addr", dtypes=_NUMBERS)
def addr(bias: Array, x: Array, y: Array, *, beta: float = 1, alpha: float = 1) -> Result:
    if x.ndim != 1 or y.ndim != 1:
        raise Unsupported(f"addr of shapes {x.shape} and {y.shape}")
    return _add_to(fast.run(np.multiply, x[:, None], y), bias, beta, alpha)


def _add_to(product: Array, bias: Array, beta: float, alpha: float) -> Result:
    """``beta * bias + alpha * product``; with a beta of 0 even a NaN in ``bias`` counts for nothing."""
    check_scalars(product.dtype, beta, alpha)
    if alpha != 1:
        fast.run(np.multiply, product, alpha, product)
    if beta == 0:
        return product
    if bias.ndim > product.ndim:
        raise Unsupported(f"a bias of shape {bias.shape} for a product of shape {product.shape}")
    if beta != 1:
        bias = fast.run(np.multiply, bias, beta)
    return fast.run(np.add, product, bias, product)


@kernel("aten::_int_mm", dtypes=("int8",))
def int_mm(x: Array, y: Array) -> Result:
    """Products of 8 bits add up to 32; doubles hold them all, and multiply faster than numpy's integers."""
    return np.matmul(x.astype(np.float64), y.astype(np.float64)).astype(np.int32)
