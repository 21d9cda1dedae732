"""Activation functions and their gradients."""

from __future__ import annotations

import numpy as np

from flroute.reference_vendor.support import (
    FLOATS,
    NUMBERS,
    REALS,
    Array,
    Result,
    check_scalars,
    floating,
    in_blocks,
    narrow,
    quiet,
    rounded,
    select,
    wide,
    without,
)
from flroute.vendor import kernel


@kernel("aten::relu", dtypes=NUMBERS)
def relu(x: Array) -> Result:
    return np.maximum(x, 0)


@kernel("aten::threshold_backward", dtypes=FLOATS)
def threshold_backward(gradient: Array, x: Array, threshold: float) -> Result:
    return without(np.less_equal(x, threshold), gradient)


@kernel("aten::leaky_relu", dtypes=FLOATS)
@quiet
def leaky_relu(x: Array, negative_slope: float = 0.01) -> Result:
    return select(np.greater(x, 0), x, np.multiply(x, negative_slope))


@kernel("aten::leaky_relu_backward", dtypes=FLOATS)
@quiet
def leaky_relu_backward(gradient: Array, x: Array, negative_slope: float, self_is_result: bool) -> Result:
    return select(np.greater(x, 0), gradient, np.multiply(gradient, negative_slope))


@kernel("aten::hardtanh", dtypes=NUMBERS)
def hardtanh(x: Array, min_val: float = -1, max_val: float = 1) -> Result:
    check_scalars(x.dtype, min_val, max_val)
    return np.minimum(np.maximum(x, min_val), max_val)


@kernel("aten::hardtanh_backward", dtypes=FLOATS)
def hardtanh_backward(gradient: Array, x: Array, min_val: float, max_val: float) -> Result:
    outside = np.less_equal(x, min_val) | np.greater_equal(x, max_val)
    return without(outside, gradient)


@kernel("aten::tanh", dtypes=REALS)
def tanh(x: Array) -> Result:
    return rounded(np.tanh, x, like=x)


@kernel("aten::tanh_backward", dtypes=FLOATS)
@quiet
def tanh_backward(gradient: Array, output: Array) -> Result:
    return narrow(gradient * (1 - np.square(wide(output))), output)


def _logistic(x: Array) -> Result:
    """1 / (1 + exp(-x)), a new array."""
    result = np.exp(np.negative(x))
    result += 1
    return np.reciprocal(result)


def _one_plus_exp_of_minus(out: Array, x: Array) -> None:
    np.negative(x, out=out)
    np.exp(out, out=out)
    np.add(out, 1, out=out)


def _sigmoid(out: Array, x: Array) -> None:
    _one_plus_exp_of_minus(out, x)
    np.reciprocal(out, out=out)


def _silu(out: Array, x: Array) -> None:
    _one_plus_exp_of_minus(out, x)
    np.divide(x, out, out=out)


def _silu_slope(out: Array, gradient: Array, x: Array) -> None:
    """s (1 + x (1 - s)) for the logistic s of x."""
    _sigmoid(out, x)
    rest = np.subtract(1, out)
    np.multiply(rest, x, out=rest)
    np.add(rest, 1, out=rest)
    np.multiply(out, rest, out=out)
    np.multiply(out, gradient, out=out)


@kernel("aten::sigmoid", dtypes=REALS)
@quiet
def sigmoid(x: Array) -> Result:
    return in_blocks(_sigmoid, floating(x))


@kernel("aten::sigmoid_backward", dtypes=FLOATS)
@quiet
def sigmoid_backward(gradient: Array, output: Array) -> Result:
    return gradient * ((1 - output) * output)


@kernel("aten::silu", dtypes=FLOATS)
@quiet
def silu(x: Array) -> Result:
    return in_blocks(_silu, x)


@kernel("aten::silu_backward", dtypes=FLOATS)
@quiet
def silu_backward(gradient: Array, x: Array) -> Result:
    return in_blocks(_silu_slope, gradient, x)


@kernel("aten::elu", dtypes=FLOATS)
@quiet
def elu(x: Array, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Result:
    exact = wide(x)
    return narrow(np.where(x < 0, np.expm1(exact * input_scale) * alpha * scale, exact * scale), x)


@kernel("aten::softplus", dtypes=FLOATS)
@quiet
def softplus(x: Array, beta: float = 1, threshold: float = 20) -> Result:
    scaled = wide(x) * beta
    return narrow(np.where(scaled > threshold, x, np.log1p(np.exp(scaled)) / beta), x)


@kernel("aten::softplus_backward", dtypes=FLOATS)
@quiet
def softplus_backward(gradient: Array, x: Array, beta: float, threshold: float) -> Result:
    scaled = wide(x) * beta
    return narrow(np.where(scaled > threshold, gradient, gradient * _logistic(scaled)), x)
