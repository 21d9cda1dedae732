"""Convolution in one to three dimensions: patches unfolded into a matrix, then one product per group.

Three primitives serve convolution, transposed convolution and the gradients of both, since each is one
of the others seen from another side. Images come one after the other, and of a large one some rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from flroute.reference_vendor.memory import empty
from flroute.reference_vendor.sums import accurate_sum
from flroute.reference_vendor.support import FLOATS, Array, Result, narrow, quiet
from flroute.vendor import Unsupported, kernel


@dataclass(frozen=True)
class Window:
    """How the kernel moves over an image: one number per spatial dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def output(self, image: Sequence[int], kernel_size: Sequence[int]) -> tuple[int, ...]:
        """Spatial size of the result of a convolution."""
        sizes = zip(image, kernel_size, self.stride, self.padding, self.dilation, strict=True)
        return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)

    def inside(self, offset: Sequence[int], output: Sequence[int]) -> tuple[slice, ...]:
        """Where, in padded images, one element of the kernel meets each position of the output."""
        steps = zip(offset, output, self.stride, self.dilation, strict=True)
        return (slice(None), *(slice(o * d, o * d + (n - 1) * s + 1, s) for o, n, s, d in steps))

    def interior(self, image: Sequence[int]) -> tuple[slice, ...]:
        """Where, in padded images, the images themselves lie."""
        return (slice(None), *(slice(p, p + n) for p, n in zip(self.padding, image, strict=True)))

    def grown(self, image: Sequence[int]) -> tuple[int, ...]:
        """Size of the image with its padding."""
        return tuple(n + 2 * p for n, p in zip(image, self.padding, strict=True))


def _window(
    x: Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Window:
    spatial = x.ndim - 2
    if spatial not in (1, 2, 3):
        raise Unsupported(f"convolution of an input with {x.ndim} dimensions")

    def each(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(values) if len(values) == spatial else tuple(values) * spatial

    window = Window(each(stride), each(padding), each(dilation), groups)
    if min(window.stride) < 1 or min(window.dilation) < 1 or min(window.padding) < 0 or groups < 1:
        raise Unsupported(f"convolution with {window}")
    return window


def _padded(x: Array, window: Window) -> Array:
    """The images with zeros around them; never to be written to."""
    if not any(window.padding):
        return x
    batch, channels, *image = x.shape
    padded = np.zeros((batch, channels, *window.grown(image)), x.dtype)
    padded[(slice(None), *window.interior(image))] = x
    return padded


def _patches(images: Array, kernel_size: tuple[int, ...], output: tuple[int, ...], window: Window) -> Array:
    """What each element of the kernel meets at each position of padded images: (channels, *kernel, images, *output), a view."""
    per_image, per_channel, *across = images.strides
    in_kernel = (step * d for step, d in zip(across, window.dilation, strict=True))
    between = (step * s for step, s in zip(across, window.stride, strict=True))
    shape = (images.shape[1], *kernel_size, len(images), *output)
    return as_strided(images, shape, (per_channel, *in_kernel, per_image, *between), writeable=False)


_COLUMNS = 1 << 17
"""Elements: as many patches are unfolded at a time as stay in a core's own cache until the product has read them."""
_POSITIONS = 128
"""Positions of the output that make a product worth its start: of smaller images several are unfolded side by side."""


def _unfolded(
    x: Array, kernel_size: tuple[int, ...], output: tuple[int, ...], window: Window
) -> Iterator[tuple[slice, slice, Array]]:
    """Patches as columns of matrices, (groups, channels / groups * kernel elements, images * positions).

    The memory of the matrices is used again from one to the next.

    Yields:
        Which images and which positions of the flattened output these are, and the matrices.
    """
    padded = _padded(x, window)
    inner = prod(output[1:])
    rows = x.shape[1] * prod(kernel_size)
    step = min(max(1, _COLUMNS // (rows * inner)), output[0])
    together = max(1, min(_POSITIONS // prod(output), len(x)))
    if together > 1:
        step = output[0]
    room = empty((rows * together * step * inner,), x.dtype)
    for image in range(0, len(x), together):
        images = padded[image : image + together]
        view = _patches(images, kernel_size, output, window)
        for start in range(0, output[0], step):
            stop = min(start + step, output[0])
            some = view[(slice(None),) * (2 + len(kernel_size)) + (slice(start, stop),)]
            if not some.flags.c_contiguous:
                columns = room[: some.size].reshape(some.shape)
                np.copyto(columns, some)
                some = columns
            yield (
                slice(image, image + len(images)),
                slice(start * inner, stop * inner),
                some.reshape(window.groups, rows // window.groups, -1),
            )


def _by_group(x: Array, groups: int) -> Array:
    """(N, C, *image) as (N, groups, C / groups, positions)."""
    batch, channels, *image = x.shape
    return x.reshape(batch, groups, channels // groups, prod(image))


def _correlate(x: Array, weight: Array, output: tuple[int, ...], window: Window) -> Array:
    """The convolution itself: ``weight`` is (out channels, in channels / groups, *kernel)."""
    rows = weight.reshape(window.groups, weight.shape[0] // window.groups, -1)
    result = empty((len(x), *rows.shape[:2], prod(output)), x.dtype)
    for images, positions, columns in _unfolded(x, weight.shape[2:], output, window):
        some = result[images, :, :, positions]
        if len(some) == 1:
            np.matmul(rows, columns, out=some[0])
        else:
            some[...] = np.matmul(rows, columns).reshape(*rows.shape[:2], len(some), -1).transpose(2, 0, 1, 3)
    return result.reshape(len(x), weight.shape[0], *output)


def _spread(gradient: Array, weight: Array, image: Sequence[int], window: Window) -> Array:
    """Gradient of ``_correlate`` for its input, an image of the given size."""
    mirrored = _mirrored(window, weight.shape[2:])
    many_inputs = (
        2 * weight.shape[1] >= weight.shape[0] // window.groups
    )  # else it would unfold more than is below
    fits = min(mirrored.padding) >= 0 and mirrored.output(gradient.shape[2:], weight.shape[2:]) == tuple(
        image
    )
    if many_inputs and fits:
        return _correlate(gradient, _turned(weight, window.groups), tuple(image), mirrored)
    batch, _, *output = gradient.shape
    kernel_size = weight.shape[2:]
    channels = weight.shape[1] * window.groups
    rows = weight.reshape(window.groups, weight.shape[0] // window.groups, -1).transpose(0, 2, 1)
    padded = np.zeros((batch, channels, *window.grown(image)), gradient.dtype)
    for target, upstream in zip(padded, _by_group(gradient, window.groups), strict=True):
        columns = np.matmul(rows, upstream).reshape(channels, *kernel_size, *output)
        for offset in product(*map(range, kernel_size)):
            target[window.inside(offset, output)] += columns[(slice(None), *offset)]
    return np.ascontiguousarray(padded[(slice(None), *window.interior(image))])


def _mirrored(window: Window, kernel_size: Sequence[int]) -> Window:
    """The window over an output that meets, for each input position, what the input took part in: if the stride is 1."""
    if max(window.stride) > 1:
        return replace(window, padding=(-1,) * len(kernel_size))
    reach = zip(window.dilation, kernel_size, window.padding, strict=True)
    return replace(window, padding=tuple(d * (k - 1) - p for d, k, p in reach))


def _turned(weight: Array, groups: int) -> Array:
    """The weight with channels in and out exchanged in each group, and the kernel turned by 180 degrees."""
    outputs, inputs, *kernel_size = weight.shape
    grouped = weight.reshape(groups, outputs // groups, inputs, *kernel_size).swapaxes(1, 2)
    turned = np.flip(grouped, tuple(range(3, grouped.ndim)))
    return turned.reshape(groups * inputs, outputs // groups, *kernel_size)


def _weight_gradient(x: Array, gradient: Array, weight: Array, window: Window) -> Array:
    """Gradient of ``_correlate`` for its weight."""
    rows = _by_group(gradient, window.groups)
    total = np.zeros((window.groups, weight.size // weight.shape[0], rows.shape[2]), x.dtype)
    for images, positions, columns in _unfolded(x, weight.shape[2:], gradient.shape[2:], window):
        upstream = rows[images, :, :, positions].transpose(1, 0, 3, 2)
        total += np.matmul(columns, upstream.reshape(window.groups, -1, rows.shape[2]))
    return total.transpose(0, 2, 1).reshape(weight.shape)


@kernel("aten::convolution", "aten::convolution_overrideable", dtypes=FLOATS)
@quiet
def convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Result:
    window = _window(x, stride, padding, dilation, groups)
    _check_shapes(x, weight, bias, window, transposed)
    if transposed:
        image = _transposed_size(x.shape[2:], weight.shape[2:], window, output_padding)
        result = _spread(x, weight, image, window)
    else:
        result = _correlate(x, weight, window.output(x.shape[2:], weight.shape[2:]), window)
    if bias is not None:
        result += bias.reshape(-1, *(1,) * (x.ndim - 2))
    return result


def _transposed_size(
    image: Sequence[int], kernel_size: Sequence[int], window: Window, output_padding: Sequence[int]
) -> tuple[int, ...]:
    extra = tuple(output_padding) if len(output_padding) == len(image) else tuple(output_padding) * len(image)
    size = tuple(
        (n - 1) * s - 2 * p + d * (k - 1) + e + 1
        for n, k, s, p, d, e in zip(
            image, kernel_size, window.stride, window.padding, window.dilation, extra, strict=True
        )
    )
    if min(size) < 1 or min(extra) < 0 or any(map(_too_large, extra, window.stride, window.dilation)):
        raise Unsupported(f"transposed convolution of {tuple(image)} to {size}")
    return size


def _too_large(extra: int, stride: int, dilation: int) -> bool:
    """Whether the host refuses an output padding."""
    return extra >= max(stride, dilation)


def _check_shapes(x: Array, weight: Array, bias: Array | None, window: Window, transposed: bool) -> None:
    """Raise Unsupported for shapes that do not belong together: PyTorch's message says it best."""
    fit = (
        weight.ndim == x.ndim
        and 0 not in x.shape[1:]
        and weight.size > 0
        and weight.shape[0] % window.groups == 0
    )
    if fit and transposed:
        outputs = weight.shape[1] * window.groups
        fit = weight.shape[0] == x.shape[1]
    elif fit:
        outputs = weight.shape[0]
        fit = weight.shape[1] * window.groups == x.shape[1]
        fit = fit and min(window.output(x.shape[2:], weight.shape[2:])) > 0
    if not fit or (bias is not None and bias.shape != (outputs,)):
        raise Unsupported(f"convolution of {x.shape} by {weight.shape} in {window.groups} groups")


def _check_gradient(gradient: Array, x: Array, weight: Array, window: Window, transposed: bool) -> None:
    """Raise Unsupported for a gradient that is not of the output's shape: patches would leave its memory."""
    channels = weight.shape[1] * window.groups if transposed else weight.shape[0]
    fit = gradient.ndim == x.ndim and gradient.shape[:2] == (x.shape[0], channels)
    if fit and transposed:
        reached = window.output(gradient.shape[2:], weight.shape[2:])
        fit = all(n <= m for n, m in zip(x.shape[2:], reached, strict=True))
    elif fit:
        fit = gradient.shape[2:] == window.output(x.shape[2:], weight.shape[2:])
    if not fit:
        raise Unsupported(f"a gradient of {gradient.shape} for {x.shape} by {weight.shape}")


@kernel("aten::convolution_backward", dtypes=FLOATS)
@quiet
def convolution_backward(
    gradient: Array,
    x: Array,
    weight: Array,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    window = _window(x, stride, padding, dilation, groups)
    _check_shapes(x, weight, None, window, transposed)
    _check_gradient(gradient, x, weight, window, transposed)
    wants_input, wants_weight, wants_bias = output_mask
    for_input = for_weight = for_bias = None
    if transposed:
        if wants_input:
            for_input = _correlate(gradient, weight, x.shape[2:], window)
        if wants_weight:
            for_weight = _weight_gradient(gradient, x, weight, window)
    else:
        if wants_input:
            for_input = _spread(gradient, weight, x.shape[2:], window)
        if wants_weight:
            for_weight = _weight_gradient(x, gradient, weight, window)
    if wants_bias:
        for_bias = narrow(accurate_sum(gradient, (0, *range(2, gradient.ndim))), gradient)
    return for_input, for_weight, for_bias


@kernel("aten::convolution_backward_overrideable", dtypes=FLOATS)
def convolution_backward_overrideable(
    gradient: Array,
    x: Array,
    weight: Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    return convolution_backward(
        gradient, x, weight, None, stride, padding, dilation, transposed, output_padding, groups, output_mask
    )
