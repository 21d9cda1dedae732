"""Activations, their gradients, and arithmetic of half precision: one fused pass over the elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.casting import stays
from flroute.reference_vendor.compiled.launch import Array, Source, ceil_div, compiled_kernel
from flroute.reference_vendor.memory import empty

BLOCK = 4096
HALVES = ("float16", "bfloat16")
_SOURCE = Source("pointwise", "common")


def _map(name: str, *operands: Array | float) -> Array:
    """A new array of the shape and type of the first operand, which kernel ``name`` fills."""
    first: Any = operands[0]
    out = empty(first.shape, first.dtype)
    if out.size:
        arrays = [operand for operand in operands if isinstance(operand, np.ndarray)]
        scalars = [float(operand) for operand in operands if not isinstance(operand, np.ndarray)]
        _SOURCE.launch(name, ceil_div(out.size, BLOCK), *arrays, out, *scalars, out.size, BLOCK=BLOCK)
    return out


@compiled_kernel("aten::relu", size="relu")
def relu(x: Array) -> Array:
    return _map("relu", x)


@compiled_kernel("aten::sigmoid", size="sigmoid")
def sigmoid(x: Array) -> Array:
    return _map("logistic", x)


@compiled_kernel("aten::silu", size="silu")
def silu(x: Array) -> Array:
    return _map("silu", x)


@compiled_kernel("aten::tanh", size="tanh")
def tanh(x: Array) -> Array:
    return _map("tanh", x)


@compiled_kernel("aten::exp", size="exp")
def exp(x: Array) -> Array:
    return _map("exp", x)


@compiled_kernel("aten::log", size="log")
def log(x: Array) -> Array:
    return _map("log", x)


@compiled_kernel("aten::rsqrt", size="rsqrt")
def rsqrt(x: Array) -> Array:
    return _map("rsqrt", x)


def _known_form(*_: Any, approximate: str = "none") -> bool | str:
    return approximate in ("none", "tanh") or f"approximate={approximate!r}"


_APART = (-2, -1, -0.5, 0, 0.5, 1, 2, 3)
"""Exponents that PyTorch treats apart, and numpy's kernel after it."""


def _general_exponent(x: Any, exponent: float) -> bool | str:
    if exponent.__class__ not in (int, float):
        return f"an exponent of {type(exponent).__name__}"
    return exponent not in _APART or f"the exponent {exponent}"


@compiled_kernel("aten::pow.Tensor_Scalar", size="pow", dtypes=("float32",), when=_general_exponent)
def pow_scalar(x: Array, exponent: float) -> Array:
    return _map("pow_scalar", x, float(exponent))


def _same_shape(a: Any, b: Any, *_: Any, **__: Any) -> bool | str:
    return a.shape == b.shape or "operands of different shapes"


@compiled_kernel("aten::pow.Tensor_Tensor", size="pow", dtypes=("float32",), when=_same_shape)
def pow_tensor(x: Array, exponent: Array) -> Array:
    return _map("pow_tensor", x, exponent)


@compiled_kernel("aten::gelu", size="gelu", when=_known_form)
def gelu(x: Array, *, approximate: str = "none") -> Array:
    return _map("gelu" if approximate == "none" else "gelu_tanh", x)


@compiled_kernel("aten::gelu_backward", size="gelu_backward", when=_same_shape)
def gelu_backward(gradient: Array, x: Array, *, approximate: str = "none") -> Array:
    return _map("gelu_backward" if approximate == "none" else "gelu_tanh_backward", gradient, x)


@compiled_kernel("aten::sigmoid_backward", size="sigmoid_backward", when=_same_shape)
def sigmoid_backward(gradient: Array, output: Array) -> Array:
    return _map("sigmoid_backward", gradient, output)


@compiled_kernel("aten::tanh_backward", size="tanh_backward", when=_same_shape)
def tanh_backward(gradient: Array, output: Array) -> Array:
    return _map("tanh_backward", gradient, output)


@compiled_kernel("aten::silu_backward", size="silu_backward", when=_same_shape)
def silu_backward(gradient: Array, x: Array) -> Array:
    return _map("silu_backward", gradient, x)


@compiled_kernel("aten::threshold_backward", size="threshold_backward", when=_same_shape)
def threshold_backward(gradient: Array, x: Array, threshold: float) -> Array:
    return _map("threshold_backward", gradient, x, threshold)


# -- casts from and to half precision --------------------------------------------------------------------------------

_CARRIERS: dict[Any, np.dtype[Any]] = {
    torch.float32: np.dtype("f"),
    torch.float16: np.dtype("e"),
    torch.bfloat16: np.dtype("H"),
}


def _concerns_half(x: Any, *, dtype: Any = None, device: Any = None, **how: Any) -> bool | str:
    if dtype is x.dtype or dtype not in _CARRIERS:
        return f"a cast to {dtype}"
    return stays(x, device=device, **how)


@compiled_kernel("aten::_to_copy", size="cast", dtypes=("float32", *HALVES), when=_concerns_half)
def cast(
    x: Array,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Array:
    out = empty(x.shape, _CARRIERS[dtype])
    _SOURCE.launch("cast", ceil_div(out.size, BLOCK), x, out, out.size, BLOCK=BLOCK)
    return out


# -- arithmetic of half precision, which numpy does one element at a time -----------------------------------------


def _tensors_of_one_shape(a: Any, b: Any, **_: Any) -> bool | str:
    if isinstance(b, torch.Tensor) and isinstance(a, torch.Tensor):
        return a.shape == b.shape or "operands of different shapes"
    return "an operand is a number"


@compiled_kernel("aten::add.Tensor", size="add", dtypes=HALVES, when=_tensors_of_one_shape)
def add(x: Array, y: Array, *, alpha: float = 1) -> Array:
    return _map("add", x, y, alpha)


@compiled_kernel("aten::sub.Tensor", size="add", dtypes=HALVES, when=_tensors_of_one_shape)
def sub(x: Array, y: Array, *, alpha: float = 1) -> Array:
    return _map("add", x, y, -alpha)


@compiled_kernel("aten::mul.Tensor", size="mul", dtypes=HALVES, when=_tensors_of_one_shape)
def mul(x: Array, y: Array) -> Array:
    return _map("mul", x, y)


@compiled_kernel("aten::div.Tensor", size="div", dtypes=HALVES, when=_tensors_of_one_shape)
def div(x: Array, y: Array) -> Array:
    return _map("div", x, y)
