"""Discrete Fourier transforms on numpy's pocketfft, in the precision of the input.

PyTorch's frontends (``torch.fft.*``) bring sizes, dimensions and types in order and end in three ops: complex to complex,
real to complex, complex to real. Their ``normalization`` is a number: 0 scales by nothing, 1 by one over the root of
the number of points, 2 by one over that number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from flroute.reference_vendor.support import COMPLEX, FLOATS, Array, axes, quiet
from flroute.vendor import Unsupported, kernel

Norm = Literal["backward", "ortho", "forward"]
# numpy's words say which direction is scaled by one over the number of points.
_FORWARD: tuple[Norm, ...] = ("backward", "ortho", "forward")
_BACKWARD: tuple[Norm, ...] = ("forward", "ortho", "backward")


def _over(x: Array, dim: Sequence[int]) -> tuple[int, ...]:
    """The dimensions to transform, none of them empty."""
    over = axes(dim, x.ndim) if dim else ()
    if any(x.shape[d] == 0 for d in over):
        raise Unsupported(f"a Fourier transform of no points: shape {x.shape}, dimensions {list(dim)}")
    return over


@kernel("aten::_fft_c2c", dtypes=COMPLEX)
@quiet
def fft_c2c(x: Array, dim: Sequence[int], normalization: int, forward: bool) -> Any:
    over = _over(x, dim)
    if not over:
        return x.copy()
    if forward:
        return np.fft.fftn(x, axes=over, norm=_FORWARD[normalization])
    return np.fft.ifftn(x, axes=over, norm=_BACKWARD[normalization])


@kernel("aten::_fft_r2c", dtypes=FLOATS)
@quiet
def fft_r2c(x: Array, dim: Sequence[int], normalization: int, onesided: bool) -> Any:
    """With ``onesided`` the last dimension of ``dim`` keeps its non-negative frequencies, the others being their conjugates."""
    over = _over(x, dim)
    if not over:
        raise Unsupported("a Fourier transform over no dimensions")
    transform = np.fft.rfftn if onesided else np.fft.fftn
    return transform(x, axes=over, norm=_FORWARD[normalization])


@kernel("aten::_fft_c2r", dtypes=COMPLEX)
@quiet
def fft_c2r(x: Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> Any:
    """The inverse of the onesided ``fft_r2c``: the last dimension of ``dim`` becomes ``last_dim_size`` points."""
    over = _over(x, dim)
    if not over or last_dim_size < 1 or x.shape[over[-1]] != last_dim_size // 2 + 1:
        raise Unsupported(f"{last_dim_size} real points from shape {x.shape}, dimensions {list(dim)}")
    sizes = [*(x.shape[d] for d in over[:-1]), last_dim_size]
    return np.fft.irfftn(x, s=sizes, axes=over, norm=_BACKWARD[normalization])
