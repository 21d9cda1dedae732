"""Ops over lists of tensors: what PyTorch's optimizers call in their ``foreach`` form.

Those ending in ``_`` write into the arrays they receive, without a temporary where the mathematics allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from flroute.reference_vendor import elementwise
from flroute.reference_vendor.blocks import pieces
from flroute.reference_vendor.casting import CASTS
from flroute.reference_vendor.memory import LARGE
from flroute.reference_vendor.sums import accurate_sum
from flroute.reference_vendor.support import (
    FLOATS,
    Array,
    binary,
    check_broadcast_into,
    narrow,
    quiet,
    unary,
    wide,
)
from flroute.vendor import Unsupported, kernel

Arrays = Sequence[Array]


def _check_lengths(*lists: Sequence[Any]) -> None:
    if len({len(items) for items in lists}) > 1:
        raise Unsupported(f"lists of different lengths: {[len(items) for items in lists]}")


def _check_shapes(targets: Arrays, *lists: Iterable[Any]) -> None:
    """As many operands as targets, each of which fits its target: before the first target is written.

    Raises:
        RuntimeError: in the host's words.
    """
    for others in lists:
        for target, other in zip(targets, others, strict=False):
            if other.__class__ is np.ndarray and other.shape != target.shape:
                check_broadcast_into(target.shape, other.shape)


def _each_in_place(ufunc: np.ufunc, targets: Arrays, others: Iterable[Any]) -> None:
    _check_shapes(targets, others)
    for target, other in zip(targets, others, strict=False):
        ufunc(target, other, out=target)


def _each(ufunc: np.ufunc, xs: Arrays, others: Iterable[Any]) -> list[Array]:
    return [
        ufunc(x, other) if x.nbytes < LARGE else binary(ufunc, x, other)
        for x, other in zip(xs, others, strict=False)
    ]


# -- add ----------------------------------------------------------------------------------------------


@kernel("aten::_foreach_add_.List", dtypes=FLOATS)
@quiet
def add_list_(targets: Arrays, others: Arrays, *, alpha: float = 1) -> None:
    _check_lengths(targets, others)
    _check_shapes(targets, others)
    for arrays in zip(targets, others, strict=True):
        for target, other in pieces(*arrays):
            np.add(target, other if alpha == 1 else np.multiply(other, alpha), out=target)


@kernel("aten::_foreach_add.List", dtypes=FLOATS)
def add_list(xs: Arrays, others: Arrays, *, alpha: float = 1) -> list[Array]:
    _check_lengths(xs, others)
    return [elementwise.add(x, y, alpha=alpha) for x, y in zip(xs, others, strict=True)]


@kernel("aten::_foreach_add_.Scalar", dtypes=FLOATS)
@quiet
def add_scalar_(targets: Arrays, scalar: float) -> None:
    _each_in_place(np.add, targets, repeat(scalar))


@kernel("aten::_foreach_add.Scalar", dtypes=FLOATS)
@quiet
def add_scalar(xs: Arrays, scalar: float) -> list[Array]:
    return _each(np.add, xs, repeat(scalar))


@kernel("aten::_foreach_add_.Tensor", dtypes=FLOATS)
@quiet
def add_tensor_(targets: Arrays, other: Array, *, alpha: float = 1) -> None:
    _each_in_place(np.add, targets, repeat(other if alpha == 1 else np.multiply(other, alpha)))


@kernel("aten::_foreach_sub_.List", dtypes=FLOATS)
@quiet
def sub_list_(targets: Arrays, others: Arrays, *, alpha: float = 1) -> None:
    add_list_(targets, others, alpha=-alpha)


@kernel("aten::_foreach_sub.Scalar", dtypes=FLOATS)
@quiet
def sub_scalar(xs: Arrays, scalar: float) -> list[Array]:
    elementwise.check_no_bool(scalar)
    return _each(np.subtract, xs, repeat(scalar))


# -- mul and div --------------------------------------------------------------------------------------


@kernel("aten::_foreach_mul_.Scalar", "aten::_foreach_mul_.Tensor", dtypes=FLOATS)
@quiet
def mul_(targets: Arrays, other: Any) -> None:
    _each_in_place(np.multiply, targets, repeat(other))


@kernel("aten::_foreach_mul.Scalar", "aten::_foreach_mul.Tensor", dtypes=FLOATS)
@quiet
def mul(xs: Arrays, other: Any) -> list[Array]:
    return _each(np.multiply, xs, repeat(other))


@kernel("aten::_foreach_mul_.List", "aten::_foreach_mul_.ScalarList", dtypes=FLOATS)
@quiet
def mul_list_(targets: Arrays, others: Sequence[Any]) -> None:
    _check_lengths(targets, others)
    _each_in_place(np.multiply, targets, others)


@kernel("aten::_foreach_mul.List", "aten::_foreach_mul.ScalarList", dtypes=FLOATS)
@quiet
def mul_list(xs: Arrays, others: Sequence[Any]) -> list[Array]:
    _check_lengths(xs, others)
    return _each(np.multiply, xs, others)


@kernel("aten::_foreach_div_.Scalar", "aten::_foreach_div_.Tensor", dtypes=FLOATS)
@quiet
def div_(targets: Arrays, other: Any) -> None:
    _each_in_place(np.true_divide, targets, repeat(other))


@kernel("aten::_foreach_div_.List", "aten::_foreach_div_.ScalarList", dtypes=FLOATS)
@quiet
def div_list_(targets: Arrays, others: Sequence[Any]) -> None:
    _check_lengths(targets, others)
    _each_in_place(np.true_divide, targets, others)


@kernel("aten::_foreach_div.List", "aten::_foreach_div.ScalarList", dtypes=FLOATS)
@quiet
def div_list(xs: Arrays, others: Sequence[Any]) -> list[Array]:
    _check_lengths(xs, others)
    return _each(np.true_divide, xs, others)


# -- fused steps of optimizers ------------------------------------------------------------------------


def _add_products(targets: Arrays, ys: Arrays, zs: Arrays, values: Iterable[float], ufunc: np.ufunc) -> None:
    """``target += value * ufunc(y, z)`` for each."""
    _check_shapes(targets, ys, zs)
    for arrays, value in zip(zip(targets, ys, zs, strict=True), values, strict=False):
        for target, y, z in pieces(*arrays):
            product = ufunc(y if value == 1 else np.multiply(y, value), z)
            np.add(target, product, out=target)


@kernel("aten::_foreach_addcmul_.Scalar", dtypes=FLOATS)
@quiet
def addcmul_(targets: Arrays, ys: Arrays, zs: Arrays, value: float = 1) -> None:
    _check_lengths(targets, ys, zs)
    _add_products(targets, ys, zs, repeat(value), np.multiply)


@kernel("aten::_foreach_addcmul.Scalar", dtypes=FLOATS)
def addcmul(xs: Arrays, ys: Arrays, zs: Arrays, value: float = 1) -> list[Array]:
    _check_lengths(xs, ys, zs)
    return [elementwise.addcmul(x, y, z, value=value) for x, y, z in zip(xs, ys, zs, strict=True)]


@kernel("aten::_foreach_addcdiv_.Scalar", dtypes=FLOATS)
@quiet
def addcdiv_(targets: Arrays, ys: Arrays, zs: Arrays, value: float = 1) -> None:
    _check_lengths(targets, ys, zs)
    _add_products(targets, ys, zs, repeat(value), np.true_divide)


@kernel("aten::_foreach_addcdiv_.ScalarList", dtypes=FLOATS)
@quiet
def addcdiv_list_(targets: Arrays, ys: Arrays, zs: Arrays, scalars: Sequence[float]) -> None:
    _check_lengths(targets, ys, zs, scalars)
    _add_products(targets, ys, zs, scalars, np.true_divide)


@kernel("aten::_foreach_lerp_.Scalar", dtypes=FLOATS)
@quiet
def lerp_(targets: Arrays, ends: Arrays, weight: float) -> None:
    _check_lengths(targets, ends)
    _check_shapes(targets, ends)
    from_start = abs(weight) < 0.5  # from the nearer end, as in elementwise.lerp
    for arrays in zip(targets, ends, strict=True):
        for target, end in pieces(*arrays):
            part = np.asarray(np.subtract(end, target))
            np.multiply(part, weight if from_start else 1 - weight, out=part)
            if from_start:
                np.add(target, part, out=target)
            else:
                np.subtract(end, part, out=target)


# -- one operand --------------------------------------------------------------------------------------


@kernel("aten::_foreach_sqrt", dtypes=FLOATS)
@quiet
def sqrt(xs: Arrays) -> list[Array]:
    return [np.sqrt(x) if x.nbytes < LARGE else unary(np.sqrt, x) for x in xs]


@kernel("aten::_foreach_sqrt_", dtypes=FLOATS)
@quiet
def sqrt_(targets: Arrays) -> None:
    for target in targets:
        np.sqrt(target, out=target)


@kernel("aten::_foreach_neg", dtypes=FLOATS)
def neg(xs: Arrays) -> list[Array]:
    return [np.negative(x) for x in xs]


@kernel("aten::_foreach_neg_", dtypes=FLOATS)
def neg_(targets: Arrays) -> None:
    for target in targets:
        np.negative(target, out=target)


@kernel("aten::_foreach_reciprocal_", dtypes=FLOATS)
@quiet
def reciprocal_(targets: Arrays) -> None:
    for target in targets:
        np.reciprocal(target, out=target)


@kernel("aten::_foreach_maximum_.List", dtypes=FLOATS)
def maximum_(targets: Arrays, others: Arrays) -> None:
    _check_lengths(targets, others)
    _each_in_place(np.maximum, targets, others)


@kernel("aten::_foreach_zero_", dtypes=CASTS, mixed=True)  # zero is all zero bits in every dtype
def zero_(targets: Arrays) -> None:
    for target in targets:
        target.fill(0)


@kernel("aten::_foreach_norm.Scalar", dtypes=FLOATS)
@quiet
def norm(xs: Arrays, ord: float = 2, dtype: Any = None) -> list[Any]:
    if ord != 2 or dtype is not None:
        raise Unsupported("only the 2-norm, in the dtype of the tensors")
    return [narrow(np.sqrt(accurate_sum(np.square(wide(x)))), x) for x in xs]
