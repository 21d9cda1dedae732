"""Matrix products, on numpy's BLAS. A transposed operand costs no copy."""

from __future__ import annotations

import numpy as np

from flroute.reference_vendor.support import COMPLEX, FLOATS, Array, Result, fast
from flroute.vendor import Unsupported, kernel


@kernel("aten::mm", dtypes=(*FLOATS, *COMPLEX))
def mm(x: Array, y: Array) -> Result:
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[0]:
        raise Unsupported(f"mm of shapes {x.shape} and {y.shape}")
    return fast.run(np.matmul, x, y)


@kernel("aten::bmm", dtypes=(*FLOATS, *COMPLEX))
def bmm(x: Array, y: Array) -> Result:
    if x.ndim != 3 or y.ndim != 3 or x.shape[0] != y.shape[0] or x.shape[2] != y.shape[1]:
        raise Unsupported(f"bmm of shapes {x.shape} and {y.shape}")
    return fast.run(np.matmul, x, y)


@kernel("aten::mv", dtypes=(*FLOATS, *COMPLEX))
def mv(matrix: Array, vector: Array) -> Result:
    if matrix.ndim != 2 or vector.ndim != 1 or matrix.shape[1] != vector.shape[0]:
        raise Unsupported(f"mv of shapes {matrix.shape} and {vector.shape}")
    return fast.run(np.matmul, matrix, vector)


@kernel("aten::dot", dtypes=(*FLOATS, *COMPLEX))
def dot(x: Array, y: Array) -> Result:
    if x.ndim != 1 or x.shape != y.shape:
        raise Unsupported(f"dot of shapes {x.shape} and {y.shape}")
    return fast.run(np.matmul, x, y)


@kernel("aten::addmm", dtypes=(*FLOATS, *COMPLEX))
def addmm(bias: Array, x: Array, y: Array, *, beta: float = 1, alpha: float = 1) -> Result:
    return _add_to(mm(x, y), bias, beta, alpha)


@kernel("aten::baddbmm", dtypes=(*FLOATS, *COMPLEX))
def baddbmm(bias: Array, x: Array, y: Array, *, beta: float = 1, alpha: float = 1) -> Result:
    return _add_to(bmm(x, y), bias, beta, alpha)


@kernel("aten::addmv", dtypes=(*FLOATS, *COMPLEX))
def addmv(bias: Array, matrix: Array, vector: Array, *, beta: float = 1, alpha: float = 1) -> Result:
    return _add_to(mv(matrix, vector), bias, beta, alpha)


def _add_to(product: Array, bias: Array, beta: float, alpha: float) -> Result:
    """``beta * bias + alpha * product``; with a beta of 0 even a NaN in ``bias`` counts for nothing."""
    if alpha != 1:
        fast.run(np.multiply, product, alpha, product)
    if beta == 0:
        return product
    if bias.ndim > product.ndim:
        raise Unsupported(f"a bias of shape {bias.shape} for a product of shape {product.shape}")
    if beta != 1:
        bias = fast.run(np.multiply, bias, beta)
    return fast.run(np.add, product, bias, product)
