from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from against_host import COMPLEX, FLOATS, FULL_SHAPES, agree, given, run, values
from hypothesis import strategies as st

import flroute
from flroute.vendor import Unsupported


@st.composite
def dims_of(draw: st.DrawFn, ndim: int) -> list[int]:
    """One or more dimensions, in any order; PyTorch's frontends leave no negative ones."""
    return draw(st.lists(st.integers(0, ndim - 1), unique=True, min_size=1, max_size=ndim))


@given(data=st.data(), dtype=st.sampled_from(COMPLEX), norm=st.integers(0, 2), forward=st.booleans())
def test_complex_to_complex(data: Any, dtype: torch.dtype, norm: int, forward: bool) -> None:
    x = data.draw(values(data.draw(FULL_SHAPES), dtype))
    agree("aten::_fft_c2c", x, data.draw(dims_of(x.ndim)) if x.ndim else [], norm, forward)


@given(data=st.data(), dtype=st.sampled_from(FLOATS), norm=st.integers(0, 2), onesided=st.booleans())
def test_real_to_complex_and_back(data: Any, dtype: torch.dtype, norm: int, onesided: bool) -> None:
    x = data.draw(values(data.draw(FULL_SHAPES.filter(len)), dtype))
    dims = data.draw(dims_of(x.ndim))
    agree("aten::_fft_r2c", x, dims, norm, onesided)
    agree("aten::_fft_c2r", torch.fft.rfftn(x, dim=dims), dims, norm, x.shape[dims[-1]])


@pytest.mark.parametrize("size", [64, 97, 360, 1009])
def test_single_precision_is_as_good_as_the_hosts(size: int) -> None:
    x = torch.randn(20, size, dtype=torch.complex64, generator=torch.Generator().manual_seed(size))
    exact = torch.fft.fft(x.to(torch.complex128)).numpy()
    host = np.abs(torch.fft.fft(x).numpy() - exact)
    ours = np.abs(run("aten::_fft_c2c", x, [1], 0, True) - exact)
    assert ours.max() <= 2 * host.max()
    assert ours.mean() <= 2 * host.mean()


def test_no_points_to_transform_is_left_to_the_host() -> None:
    with pytest.raises(Unsupported):
        run("aten::_fft_c2c", torch.zeros(2, 0, dtype=torch.complex64), [1], 0, True)


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fft2", "irfft2", "rfftn"])
def test_the_frontends_run_without_a_fallback(name: str) -> None:
    transform = getattr(torch.fft, name)
    complex_input = name in ("fft", "ifft", "irfft", "hfft", "fft2", "irfft2")
    x = torch.randn(4, 6, dtype=torch.complex64 if complex_input else torch.float32)
    expected = x.clone().requires_grad_()
    spectrum = transform(expected, norm="ortho")
    spectrum.abs().sum().backward()
    with flroute.enable(device="reference", fallback="error"):
        on_device = x.to("fl").requires_grad_()
        made = transform(on_device, norm="ortho")
        made.abs().sum().backward()
    torch.testing.assert_close(made.cpu(), spectrum)
    torch.testing.assert_close(on_device.grad.cpu(), expected.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("dims", [(1,), (0, 1), (2, 0)])
def test_results_are_laid_out_as_on_the_host(dims: tuple[int, ...], layout: str) -> None:
    x = torch.randn(3, 4, 5)
    x = x.transpose(0, 2) if layout == "transposed" else x
    spectrum = torch.fft.rfftn(x, dim=dims)
    with flroute.enable(device="reference", fallback="error"):
        made = torch.fft.rfftn(x.to("fl"), dim=dims)
        back = torch.fft.irfftn(made, s=[x.shape[d] for d in dims], dim=dims)
        outs = [torch.empty(0, dtype=torch.complex64, device="fl") for _ in range(2)]
        torch.fft.rfftn(x.to("fl"), dim=dims, out=outs[0])
        torch.fft.fftn(made, dim=dims, out=outs[1])
    host_outs = [torch.empty(0, dtype=torch.complex64) for _ in range(2)]
    torch.fft.rfftn(x, dim=dims, out=host_outs[0])
    torch.fft.fftn(spectrum, dim=dims, out=host_outs[1])
    assert made.stride() == spectrum.stride()
    assert back.stride() == torch.fft.irfftn(spectrum, s=[x.shape[d] for d in dims], dim=dims).stride()
    assert [out.stride() for out in outs] == [out.stride() for out in host_outs]
