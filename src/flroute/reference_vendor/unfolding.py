"""im2col and col2im: windows of an image as the columns of a matrix, and their sum back into an image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from flroute.reference_vendor.support import COMPLEX, FLOATS, Array, Result, pair, quiet
from flroute.vendor import Unsupported, kernel

Where = tuple[Any, ...]


class _Windows:
    """Where, in a padded image, each element of the sliding windows lies."""

    def __init__(
        self,
        image: Sequence[int],
        kernel_size: Sequence[int],
        dilation: Sequence[int],
        padding: Sequence[int],
        stride: Sequence[int],
    ) -> None:
        self.kernel, self.dilation, self.stride = pair(kernel_size), pair(dilation), pair(stride)
        padding = pair(padding)
        if min(*self.kernel, *self.dilation, *self.stride) < 1 or min(padding) < 0:
            raise Unsupported(f"windows of {self.kernel}, dilation {self.dilation}, stride {self.stride}")
        self.padded = tuple(n + 2 * p for n, p in zip(image, padding, strict=True))
        sizes = zip(self.padded, self.kernel, self.dilation, self.stride, strict=True)
        self.output = tuple((n - d * (k - 1) - 1) // s + 1 for n, k, d, s in sizes)
        if min(self.output) < 1:
            raise Unsupported(f"windows of {self.kernel} do not fit into {self.padded}")
        rows, columns = (slice(p, p + n) for n, p in zip(image, padding, strict=True))
        self.interior: Where = (..., rows, columns)

    def elements(self) -> Iterator[tuple[Where, Where]]:
        """Each element of a window among the columns, and the positions it takes as the window slides."""
        for offset in product(*map(range, self.kernel)):
            steps = zip(offset, self.dilation, self.stride, self.output, strict=True)
            rows, columns = (slice(o * d, o * d + (n - 1) * s + 1, s) for o, d, s, n in steps)
            yield (..., *offset, slice(None), slice(None)), (..., rows, columns)


@kernel("aten::im2col", dtypes=(*FLOATS, *COMPLEX))
def im2col(
    x: Array,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Result:
    if x.ndim not in (3, 4) or 0 in x.shape[-3:]:
        raise Unsupported(f"im2col of shape {x.shape}")
    windows = _Windows(x.shape[-2:], kernel_size, dilation, padding, stride)
    padded = np.zeros((*x.shape[:-2], *windows.padded), x.dtype)
    padded[windows.interior] = x
    columns = np.empty((*x.shape[:-2], *windows.kernel, *windows.output), x.dtype)
    for element, where in windows.elements():
        columns[element] = padded[where]
    rows = x.shape[-3] * windows.kernel[0] * windows.kernel[1]
    return columns.reshape(*x.shape[:-3], rows, windows.output[0] * windows.output[1])


@kernel("aten::col2im", dtypes=(*FLOATS, *COMPLEX))
@quiet
def col2im(
    x: Array,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Result:
    windows = _Windows(pair(output_size), kernel_size, dilation, padding, stride)
    elements = windows.kernel[0] * windows.kernel[1]
    fit = x.ndim in (2, 3) and 0 not in x.shape[-2:] and x.shape[-2] % elements == 0
    if not fit or x.shape[-1] != windows.output[0] * windows.output[1]:
        raise Unsupported(f"col2im of shape {x.shape} to {pair(output_size)}")
    columns: Result = x.reshape(*x.shape[:-2], x.shape[-2] // elements, *windows.kernel, *windows.output)
    padded = np.zeros((*x.shape[:-2], x.shape[-2] // elements, *windows.padded), x.dtype)
    for element, where in windows.elements():
        padded[where] += columns[element]
    return np.ascontiguousarray(padded[windows.interior])
