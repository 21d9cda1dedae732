"""What the kernels share: dtype sets, predicates, quiet floating point, selection and rounding."""

from __future__ import annotations

import contextvars
import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from flroute.reference_vendor.memory import LARGE, empty, empty_like, room_for
from flroute.vendor import Unsupported, numpy_dtype

Array: TypeAlias = npt.NDArray[Any]
Result: TypeAlias = Any  # an array; where it has no dimensions, numpy's ufuncs give a scalar
F = TypeVar("F", bound=Callable[..., Any])

FLOATS = ("float32", "float64")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
NUMBERS = FLOATS + INTEGERS
REALS = (*NUMBERS, "bool")
COMPLEX = ("complex64", "complex128")
EVERY = (*REALS, *COMPLEX, "float16", "bfloat16")
"""For kernels that move elements and compute nothing. bfloat16 comes as uint16, which is no other dtype's here."""
UNSIGNED = ("uint16", "uint32", "uint64")
"""What PyTorch itself can do little with but move, compare and sort."""
MOVED = (*EVERY, *UNSIGNED, "complex32")
"""For kernels that take whatever has a width. uint16 and uint32 may be the bits of bfloat16 and complex32."""


# -- floating point without warnings ------------------------------------------------------------------


class _QuietThread(threading.local):
    """One thread's two contexts in which numpy's error state was set to ignore once.

    That state is a context variable, so the caller's own is neither read nor changed. To enter a context costs
    0.2 us, ``np.errstate`` 1.3; but a context cannot be entered twice, hence one for functions and one for ufuncs.
    """

    def __init__(self) -> None:
        self.call = _quiet_context().run
        self.calling = False
        self.run = _quiet_context().run
        """``fast.run(ufunc, ...)``: one ufunc call; ufuncs never call back into Python."""


def _quiet_context() -> contextvars.Context:
    context = contextvars.Context()
    context.run(np.seterr, all="ignore")
    return context


fast = _QuietThread()


def quiet(function: F) -> F:
    """Let ``function`` overflow or divide by zero as PyTorch does: silently."""

    @functools.wraps(function)
    def silent(*args: Any, **kwargs: Any) -> Any:
        thread = fast
        if thread.calling:
            return function(*args, **kwargs)
        thread.calling = True
        try:
            return thread.call(function, *args, **kwargs)
        finally:
            thread.calling = False

    return silent  # type: ignore[return-value]


def unary(ufunc: np.ufunc, x: Array) -> Result:
    """A ufunc that keeps the dtype, quietly; a large result takes its memory from the pool."""
    if x.nbytes < LARGE:
        return fast.run(ufunc, x)
    return fast.run(ufunc, x, out=room_for(x))


def binary(ufunc: np.ufunc, x: Any, y: Any) -> Result:
    """The same for two operands of one dtype, or a number in place of one."""
    if getattr(x, "nbytes", 0) < LARGE:
        return fast.run(ufunc, x, y)
    return fast.run(ufunc, x, y, out=room_for(x, y))


# -- selection ----------------------------------------------------------------------------------------
#
# np.where branches on every element: 20 times slower than masking bits where the condition looks random.


def _bits(x: Array) -> Array:
    return x.view(f"i{x.itemsize}")


def _mask(ufunc: np.ufunc, condition: Any, *number: int, itemsize: int) -> Result:
    """New integers of the condition's shape, all of whose bits are to be 0 or 1."""
    truth, integer = np.asarray(condition).view(np.int8), np.dtype(f"i{itemsize}")
    if truth.size * itemsize < LARGE or not truth.flags.c_contiguous:
        return ufunc(truth, *number, dtype=integer)
    return ufunc(truth, *number, dtype=integer, out=empty(truth.shape, integer))


def _in_place(mask: Any, other: Any) -> Any:
    """``mask`` itself, as the place for its result with ``other``, if that is laid out alike."""
    return mask if mask.ndim and mask.shape == other.shape and mask.strides == other.strides else None


def without(condition: Any, values: Array) -> Result:
    """``values``, but 0 where ``condition`` holds, whatever is there."""
    mask = _mask(np.subtract, condition, 1, itemsize=values.itemsize)
    kept = np.bitwise_and(mask, _bits(values), out=_in_place(mask, values))
    return np.asarray(kept).view(values.dtype)


def select(condition: Any, x: Array, y: Array) -> Result:
    """``x`` where ``condition`` holds, else ``y``: two arrays of one dtype."""
    mask = _mask(np.negative, condition, itemsize=x.itemsize)
    other = _bits(y)
    difference = np.bitwise_xor(_bits(x), other)
    chosen = np.bitwise_and(difference, mask, out=_in_place(mask, difference))
    return np.asarray(np.bitwise_xor(chosen, other, out=_in_place(chosen, chosen))).view(x.dtype)


# -- precision ----------------------------------------------------------------------------------------


def wide(x: Array) -> Array:
    """``x`` in double precision; ``x`` itself if it is double already, so never to be written to."""
    return x.astype(np.float64, copy=False)


def narrow(result: Any, like: Array) -> Any:
    """A new ``result`` in the dtype of ``like``: rounded once, after the mathematics in double precision."""
    return result.astype(like.dtype, copy=False)


def floating(x: Any) -> Any:
    """Integers and bool as numbers of PyTorch's default dtype, in which it computes functions of them."""
    if isinstance(x, np.ndarray) and x.dtype.kind in "iub":
        return x.astype(numpy_dtype(torch.get_default_dtype()))
    return x


def rounded(ufunc: np.ufunc, *operands: Any, like: Array) -> Result:
    """``ufunc`` in double precision, rounded once to the dtype of ``like``.

    numpy's own float32 ``exp``, ``log`` and ``tanh`` are off by 1.4 to 4 units in the last place,
    PyTorch's by less than 1.
    """
    if like.dtype.char == "d":
        return fast.run(ufunc, *operands)
    if like.dtype.kind in "iub":
        return rounded(ufunc, *map(floating, operands), like=floating(like))
    shape = np.broadcast(*operands).shape if len(operands) > 1 else like.shape
    out = empty_like(like, shape)
    return fast.run(ufunc, *operands, out=out, dtype=np.float64, casting="same_kind")


# A plain callable: for numpy's stubs, keepdims is a literal.
reduce: Callable[..., Any] = np.ufunc.reduce


# -- arguments ----------------------------------------------------------------------------------------


def axes(dim: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """The dimensions a reduction runs over, none negative; ``None`` and ``[]`` mean all of them.

    Raises:
        Unsupported: one is out of range or named twice; PyTorch's own implementation says it best.
    """
    if dim is None or dim == []:
        return tuple(range(ndim))
    dims = [dim] if isinstance(dim, int) else dim
    if len(dims) == 1 and -ndim <= dims[0] < ndim:
        return (dims[0] % ndim,)
    limit = max(ndim, 1)
    if any(not -limit <= d < limit for d in dims):
        raise Unsupported(f"dimension {list(dims)} is out of range for {ndim} dimensions")
    wrapped = tuple(d % limit for d in dims)
    if len(set(wrapped)) < len(wrapped):
        raise Unsupported(f"dimension {list(dims)} names one dimension twice")
    return wrapped if ndim else ()


def count_over(x: Array, over: tuple[int, ...]) -> int:
    """How many elements each result of a reduction is made of."""
    return math.prod(x.shape[dim] for dim in over)


def pair(value: Sequence[int], default: Sequence[int] = ()) -> tuple[int, int]:
    """Height and width of an ``int[2]`` argument, which PyTorch may pass as none, one or two numbers."""
    value = value or default
    return (value[0], value[-1])


def check_indices(index: Array, size: int, message: str, error: type[Exception] = IndexError) -> None:
    """In numpy -1 is the last element; for PyTorch it is out of range, like ``size`` and more.

    Raises:
        IndexError: with PyTorch's own message, in which ``{}`` stands for the index; or another ``error``.
        Unsupported: it is not of int32 or int64.
    """
    if index.dtype.char not in "ilq":
        raise Unsupported(f"an index of {index.dtype}")
    if index.size and ((least := index.min()) < 0 or index.max() >= size):
        raise error(message.format(least if least < 0 else index.max()))


def check_broadcast_into(target: tuple[int, ...], other: tuple[int, ...]) -> None:
    """An operand that is written into a target broadcasts to its shape and not beyond.

    Raises:
        RuntimeError: in PyTorch's own words.
    """
    for dim in range(-1, -1 - min(len(target), len(other)), -1):
        if target[dim] != other[dim] and 1 not in (target[dim], other[dim]):
            raise RuntimeError(
                f"The size of tensor a ({target[dim]}) must match the size of tensor b ({other[dim]}) "
                f"at non-singleton dimension {max(len(target), len(other)) + dim}"
            )
    together = np.broadcast_shapes(target, other)
    if together != target:
        raise RuntimeError(
            f"output with shape {list(target)} doesn't match the broadcast shape {list(together)}"
        )


def check_scalars(dtype: np.dtype[Any], *scalars: Any) -> None:
    """Scalars that leave a tensor of ``dtype`` what it is; to promote, wrap or refuse others is PyTorch's business.

    Raises:
        Unsupported: one is complex and the tensor is not, or the tensor is of integers or bool and it is not one that fits.
    """
    for scalar in scalars:
        if scalar is None or isinstance(scalar, np.ndarray):
            continue
        if dtype.kind == "f" and isinstance(scalar, (float, int)):
            continue
        if dtype.kind == "c" and isinstance(scalar, (complex, float, int)):
            continue
        if dtype.kind == "b" and isinstance(scalar, bool):
            continue
        if dtype.kind in "iu" and type(scalar) is int:
            limits = np.iinfo(dtype)
            if limits.min <= scalar <= limits.max:
                continue
        raise Unsupported(f"the scalar {scalar!r} with a tensor of {dtype}")


# -- predicates ---------------------------------------------------------------------------------------
#
# They see tensors, not arrays, and run at every call. A kernel with `dtypes` needs none for promotion: the
# router leaves tensors of mixed dtypes to the host.

NUMPY_TYPES = frozenset(getattr(torch, name) for name in (*REALS, "float16", "complex64", "complex128"))
REAL_TYPES = frozenset(getattr(torch, name) for name in REALS)
FLOAT_TYPES = frozenset(getattr(torch, name) for name in FLOATS)


def float_values_long_index(values: torch.Tensor, index: torch.Tensor, *_: Any) -> bool | str:
    """For ops on float values and int64 indices or targets."""
    if values.dtype not in FLOAT_TYPES:
        return f"values of {values.dtype}"
    return True if index.dtype is torch.int64 else f"an index of {index.dtype}"
