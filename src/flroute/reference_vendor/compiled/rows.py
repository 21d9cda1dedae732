"""Softmax and its logarithm along the last dimension: a row is read once, and what is made of it stays in the cache."""

from __future__ import annotations

from typing import Any

import torch

from flroute.reference_vendor.compiled.launch import Array, Source, block_of, compiled_kernel
from flroute.reference_vendor.memory import empty

LONGEST_ROW = 1 << 16
"""Elements of a row that is one block, with its intermediate results in a core's second-level cache."""
_SOURCE = Source("rows", "common")


def _by_rows(name: str, *operands: Array) -> Array:
    """A new array, which kernel ``name`` fills row by row."""
    first = operands[0]
    out, width = empty(first.shape, first.dtype), first.shape[-1]
    _SOURCE.launch(name, out.size // width, *operands, out, width, BLOCK=block_of(width))
    return out


def _rows(x: Any, dim: int) -> bool | str:
    if x.ndim == 0 or dim not in (-1, x.ndim - 1):
        return "not along the last dimension"
    return 0 < x.shape[-1] <= LONGEST_ROW or f"rows of {x.shape[-1]} elements"


def _of_one_dtype(x: Any, dim: int, half_to_float: bool) -> bool | str:
    return "a result of another dtype" if half_to_float else _rows(x, dim)


@compiled_kernel("aten::_softmax", size="softmax", when=_of_one_dtype)
def softmax(x: Array, dim: int, half_to_float: bool) -> Array:
    return _by_rows("softmax", x)


@compiled_kernel("aten::_log_softmax", size="softmax", when=_of_one_dtype)
def log_softmax(x: Array, dim: int, half_to_float: bool) -> Array:
    return _by_rows("log_softmax", x)


def _of_no_other_dtype(x: Any, dim: int, dtype: torch.dtype | None = None) -> bool | str:
    return _rows(x, dim) if dtype in (None, x.dtype) else f"a result of {dtype}"


@compiled_kernel("aten::_safe_softmax", size="softmax", when=_of_no_other_dtype)
def safe_softmax(x: Array, dim: int, dtype: torch.dtype | None = None) -> Array:
    return _by_rows("safe_softmax", x)


def _same_rows(gradient: Any, output: Any, dim: int, input_dtype: torch.dtype) -> bool | str:
    if gradient.shape != output.shape or gradient.dtype is not input_dtype:
        return "a gradient of another shape or dtype"
    return _rows(output, dim)


@compiled_kernel("aten::_softmax_backward_data", size="softmax_backward", when=_same_rows)
def softmax_backward(gradient: Array, output: Array, dim: int, input_dtype: torch.dtype) -> Array:
    return _by_rows("softmax_backward", gradient, output)


@compiled_kernel("aten::_log_softmax_backward_data", size="softmax_backward", when=_same_rows)
def log_softmax_backward(gradient: Array, output: Array, dim: int, input_dtype: torch.dtype) -> Array:
    return _by_rows("log_softmax_backward", gradient, output)
