"""Joining, cutting and rearranging: ops that move elements without computing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flroute.reference_vendor.casting import scalar
from flroute.reference_vendor.memory import LARGE, empty
from flroute.reference_vendor.support import COMPLEX, EVERY, MOVED, REALS, Array, Result, axes, quiet
from flroute.vendor import Unsupported, kernel

# -- joining and cutting ------------------------------------------------------------------------------


@kernel("aten::cat", dtypes=MOVED)
def cat(arrays: Sequence[Array], dim: int = 0) -> Result:
    # A tensor of shape (0,) joins anything, for PyTorch's own history.
    joined = [array for array in arrays if array.shape != (0,)] or list(arrays)
    if not joined or joined[0].ndim == 0:
        raise Unsupported("cat of no tensors, or of 0-dim ones")
    (axis,) = axes(dim, joined[0].ndim)
    size = [*joined[0].shape[:axis], *joined[0].shape[axis + 1 :]]
    if any([*array.shape[:axis], *array.shape[axis + 1 :]] != size for array in joined):
        raise Unsupported(f"cat of shapes {[array.shape for array in joined]}")
    small = sum([array.nbytes for array in joined]) < LARGE
    if small or not all(
        array.flags.c_contiguous for array in joined
    ):  # numpy keeps an order of dimensions that all have
        return np.concatenate(joined, axis=axis)
    shape = list(joined[0].shape)
    shape[axis] = sum([array.shape[axis] for array in joined])
    return np.concatenate(joined, axis=axis, out=empty(shape, joined[0].dtype))


@kernel("aten::repeat", dtypes=EVERY)
def repeat(x: Array, repeats: Sequence[int]) -> Result:
    if len(repeats) < x.ndim or any(times < 0 for times in repeats):
        raise Unsupported(f"{list(repeats)} repetitions of {x.ndim} dimensions")
    return np.tile(x, repeats)


@kernel("aten::tril", dtypes=EVERY)
def tril(x: Array, diagonal: int = 0) -> Result:
    if x.ndim < 2:
        raise Unsupported(f"tril of shape {x.shape}")
    return np.tril(x, diagonal)


@kernel("aten::triu", dtypes=EVERY)
def triu(x: Array, diagonal: int = 0) -> Result:
    if x.ndim < 2:
        raise Unsupported(f"triu of shape {x.shape}")
    return np.triu(x, diagonal)


@kernel("aten::flip", dtypes=EVERY)
def flip(x: Array, dims: Sequence[int]) -> Result:
    return np.flip(x, axes(dims, x.ndim)).copy() if dims else x.copy()


@kernel("aten::constant_pad_nd", dtypes=EVERY)
@quiet
def constant_pad(x: Array, pad: Sequence[int], value: float = 0) -> Result:
    """Pairs in ``pad`` run from the last dimension backwards; a negative one cuts."""
    fill = scalar(value, x.dtype)
    if len(pad) % 2 or len(pad) > 2 * x.ndim:
        raise Unsupported(f"padding {list(pad)} for {x.ndim} dimensions")
    source, target, shape = [slice(None)] * x.ndim, [slice(None)] * x.ndim, list(x.shape)
    for i in range(len(pad) // 2):
        axis, (before, after) = x.ndim - 1 - i, pad[2 * i : 2 * i + 2]
        shape[axis] += before + after
        if shape[axis] < 0:
            raise Unsupported(f"padding {list(pad)} for shape {x.shape}")
        kept = max(x.shape[axis] + min(before, 0) + min(after, 0), 0)
        source[axis] = slice(max(-before, 0), max(-before, 0) + kept)
        target[axis] = slice(max(before, 0), max(before, 0) + kept)
    result = np.full(shape, fill)
    result[tuple(target)] = x[tuple(source)]
    return result


@kernel("aten::narrow_copy", dtypes=EVERY)
def narrow_copy(x: Array, dim: int, start: int, length: int) -> Result:
    (axis,) = axes(dim, x.ndim)
    size = x.shape[axis]
    first = start + size if start < 0 else start
    if not (0 <= first <= size and 0 <= length <= size - first):
        raise Unsupported(f"{length} elements from {start} on, of {size}")
    return x[(slice(None),) * axis + (slice(first, first + length),)].copy()


# -- rearranging --------------------------------------------------------------------------------------


@kernel("aten::roll", dtypes=EVERY)
def roll(x: Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> Result:
    """Without dimensions, ``x`` rolls as if it were flat."""
    if not dims and len(shifts) == 1:
        return np.roll(x, shifts[0])
    if len(shifts) != len(dims) or x.ndim == 0:
        raise Unsupported(f"{len(shifts)} shifts for {len(dims)} dimensions of {x.ndim}")
    return np.roll(x, tuple(shifts), tuple(axes(d, x.ndim)[0] for d in dims))


@kernel("aten::channel_shuffle", dtypes=EVERY)
def channel_shuffle(x: Array, groups: int) -> Result:
    """Channels as a matrix with a row for each group, read by columns."""
    if x.ndim < 3 or groups < 1 or x.shape[1] % groups:
        raise Unsupported(f"{groups} groups for shape {x.shape}")
    parted = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    return np.array(parted.swapaxes(1, 2), order="C").reshape(x.shape)


@kernel("aten::pixel_shuffle", dtypes=EVERY)
def pixel_shuffle(x: Array, upscale_factor: int) -> Result:
    """Each pixel's ``factor**2`` channels become a square of pixels."""
    factor = upscale_factor
    if x.ndim < 3 or factor < 1 or x.shape[-3] % factor**2:
        raise Unsupported(f"upscale factor of {factor} for shape {x.shape}")
    *batch, channels, height, width = x.shape
    squares = x.reshape(math.prod(batch), channels // factor**2, factor, factor, height, width)
    spread = np.array(squares.transpose(0, 1, 4, 2, 5, 3), order="C")
    return spread.reshape(*batch, channels // factor**2, height * factor, width * factor)


@kernel("aten::pixel_unshuffle", dtypes=EVERY)
def pixel_unshuffle(x: Array, downscale_factor: int) -> Result:
    """Each square of pixels becomes the channels of one: the inverse of ``pixel_shuffle``."""
    factor = downscale_factor
    if x.ndim < 3 or factor < 1 or x.shape[-1] % factor or x.shape[-2] % factor:
        raise Unsupported(f"downscale factor of {factor} for shape {x.shape}")
    *batch, channels, height, width = x.shape
    squares = x.reshape(math.prod(batch), channels, height // factor, factor, width // factor, factor)
    gathered = np.array(squares.transpose(0, 1, 3, 5, 2, 4), order="C")
    return gathered.reshape(*batch, channels * factor**2, height // factor, width // factor)


@kernel("aten::repeat_interleave.Tensor", dtypes=("int32", "int64"))
def repeat_interleave(repeats: Array, *, output_size: int | None = None) -> Result:
    """Each position as often as ``repeats`` says there."""
    if repeats.ndim != 1 or (repeats.size and repeats.min() < 0):
        raise Unsupported(f"repeats of shape {repeats.shape}, or negative ones")
    if output_size is not None and output_size != repeats.sum():
        raise Unsupported(f"an output size of {output_size} where the repeats sum up to {repeats.sum()}")
    return np.repeat(np.arange(repeats.size, dtype=repeats.dtype), repeats)


@kernel("aten::unfold_backward", dtypes=(*REALS, *COMPLEX))
def unfold_backward(grad_in: Array, input_sizes: Sequence[int], dim: int, size: int, step: int) -> Result:
    """The gradient of ``x.unfold(dim, size, step)``: windows add up where they overlap."""
    result = np.zeros(input_sizes, grad_in.dtype)
    if grad_in.size == 0:
        return result
    if result.ndim == 0:
        return grad_in.reshape(()).copy()
    (axis,) = axes(dim, result.ndim)
    target = result.swapaxes(axis, -1)
    for place in range(size):  # the last dimension of grad_in
        spots = grad_in[..., place].swapaxes(axis, -1)
        target[..., place : place + step * (spots.shape[-1] - 1) + 1 : step] += spots
    return result
