"""Activations, their gradients, and arithmetic of half precision: one fused pass over the elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.compiled.launch import Array, Source, ceil_div
from flroute.reference_vendor.compiled.sizes import MIN_NUMEL
from flroute.reference_vendor.memory import empty
from flroute.vendor import kernel

BLOCK = 4096
ALL_FLOATS = ("float32", "float64", "float16", "bfloat16")
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


def _kernel(*ops: str, name: str, dtypes: tuple[str, ...] = ALL_FLOATS, **more: Any) -> Callable[..., Any]:
    return kernel(*ops, dtypes=dtypes, layouts=("contiguous",), min_numel=MIN_NUMEL[name], **more)


@_kernel("aten::relu", name="relu")
def relu(x: Array) -> Array:
    return _map("relu", x)


@_kernel("aten::sigmoid", name="sigmoid")
def sigmoid(x: Array) -> Array:
    return _map("logistic", x)


@_kernel("aten::silu", name="silu")
def silu(x: Array) -> Array:
    return _map("silu", x)


@_kernel("aten::tanh", name="tanh")
def tanh(x: Array) -> Array:
    return _map("tanh", x)


@_kernel("aten::exp", name="exp")
def exp(x: Array) -> Array:
    return _map("exp", x)


@_kernel("aten::log", name="log")
def log(x: Array) -> Array:
    return _map("log", x)


@_kernel("aten::rsqrt", name="rsqrt")
def rsqrt(x: Array) -> Array:
    return _map("rsqrt", x)


def _known_form(*_: Any, approximate: str = "none") -> bool | str:
    return approximate in ("none", "tanh") or f"approximate={approximate!r}"


@_kernel("aten::gelu", name="gelu", when=_known_form)
def gelu(x: Array, *, approximate: str = "none") -> Array:
    return _map("gelu" if approximate == "none" else "gelu_tanh", x)


def _same_shape(a: Any, b: Any, *_: Any, **__: Any) -> bool | str:
    return a.shape == b.shape or "operands of different shapes"


@_kernel("aten::gelu_backward", name="gelu_backward", when=_same_shape)
def gelu_backward(gradient: Array, x: Array, *, approximate: str = "none") -> Array:
    return _map("gelu_backward" if approximate == "none" else "gelu_tanh_backward", gradient, x)


@_kernel("aten::sigmoid_backward", name="sigmoid_backward", when=_same_shape)
def sigmoid_backward(gradient: Array, output: Array) -> Array:
    return _map("sigmoid_backward", gradient, output)


@_kernel("aten::tanh_backward", name="tanh_backward", when=_same_shape)
def tanh_backward(gradient: Array, output: Array) -> Array:
    return _map("tanh_backward", gradient, output)


@_kernel("aten::silu_backward", name="silu_backward", when=_same_shape)
def silu_backward(gradient: Array, x: Array) -> Array:
    return _map("silu_backward", gradient, x)


@_kernel("aten::threshold_backward", name="threshold_backward", when=_same_shape)
def threshold_backward(gradient: Array, x: Array, threshold: float) -> Array:
    return _map("threshold_backward", gradient, x, threshold)


# -- arithmetic of half precision, which numpy does one element at a time -----------------------------------------


def _tensors_of_one_shape(a: Any, b: Any, **_: Any) -> bool | str:
    if isinstance(b, torch.Tensor) and isinstance(a, torch.Tensor):
        return a.shape == b.shape or "operands of different shapes"
    return "an operand is a number"


@_kernel("aten::add.Tensor", name="add", dtypes=HALVES, when=_tensors_of_one_shape)
def add(x: Array, y: Array, *, alpha: float = 1) -> Array:
    return _map("add", x, y, alpha)


@_kernel("aten::sub.Tensor", name="add", dtypes=HALVES, when=_tensors_of_one_shape)
def sub(x: Array, y: Array, *, alpha: float = 1) -> Array:
    return _map("add", x, y, -alpha)


@_kernel("aten::mul.Tensor", name="mul", dtypes=HALVES, when=_tensors_of_one_shape)
def mul(x: Array, y: Array) -> Array:
    return _map("mul", x, y)


@_kernel("aten::div.Tensor", name="div", dtypes=HALVES, when=_tensors_of_one_shape)
def div(x: Array, y: Array) -> Array:
    return _map("div", x, y)
