from __future__ import annotations

import numpy as np
import pytest
import torch
from against_host import FLOATS, INTEGERS, agree, run

EVERYWHERE = ["i0", "special_i0e", "special_i1", "special_i1e", "special_modified_bessel_i0", "special_modified_bessel_i1",
              "special_bessel_j0", "special_bessel_j1", "special_spherical_bessel_j0"]  # fmt: skip
POSITIVE = ["special_bessel_y0", "special_bessel_y1", "special_modified_bessel_k0", "special_modified_bessel_k1",
            "special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1"]  # fmt: skip


@pytest.mark.parametrize("name", EVERYWHERE + POSITIVE)
def test_float32(name: str) -> None:
    x = torch.cat([torch.linspace(0.01, 60, 2001), torch.logspace(-6, 1.5, 200)])
    agree(f"aten::{name}", x)
    if name in EVERYWHERE:
        agree(f"aten::{name}", -x[::7].reshape(-1, 5)[:, 1:])


@pytest.mark.parametrize("name", EVERYWHERE + POSITIVE)
def test_float64(name: str) -> None:
    """To the host's own accuracy: its Bessel functions of the first and second kind are off by 5e-7 around 5."""
    x = torch.linspace(0.01, 60, 2001, dtype=torch.float64)
    host = getattr(torch.ops.aten, name)(x)
    exact = 1e-6 if "bessel_j" in name or "bessel_y" in name else 1e-13
    torch.testing.assert_close(torch.from_numpy(run(f"aten::{name}", x)), host, rtol=exact, atol=exact)


def test_wronskians_hold_in_double_precision() -> None:
    """J1 Y0 - J0 Y1 = 2 / (pi x) and I0 K1 + I1 K0 = 1 / x (DLMF 10.5.2, 10.28.2) tie the functions to each other."""
    x = torch.cat(
        [torch.logspace(-5, 2, 400, dtype=torch.float64), torch.tensor([24.999, 25.0, 25.001]).double()]
    )
    j0, j1, y0, y1 = (run(f"aten::special_bessel_{name}", x) for name in ("j0", "j1", "y0", "y1"))
    np.testing.assert_allclose((j1 * y0 - j0 * y1) * x.numpy() * np.pi / 2, 1, rtol=1e-13)
    i0, i1 = run("aten::special_i0e", x), run("aten::special_i1e", x)
    k0, k1 = (run(f"aten::special_scaled_modified_bessel_{name}", x) for name in ("k0", "k1"))
    np.testing.assert_allclose((i0 * k1 + i1 * k0) * x.numpy(), 1, rtol=1e-14)


def test_airy() -> None:
    x = torch.linspace(-30, 12, 1001)
    agree("aten::special_airy_ai", x)
    exact = torch.linspace(-30, 12, 1001, dtype=torch.float64)
    made = torch.from_numpy(run("aten::special_airy_ai", exact))
    torch.testing.assert_close(made, torch.special.airy_ai(exact), rtol=1e-5, atol=1e-5)
    # Ai'' = x Ai, across both seams
    h = 1e-3
    for seam in (-12.0, 1.5):
        at = seam + h * torch.arange(-4.0, 5, dtype=torch.float64)
        ai = run("aten::special_airy_ai", at)
        np.testing.assert_allclose(
            (ai[2:] - 2 * ai[1:-1] + ai[:-2]) / h**2, at[1:-1].numpy() * ai[1:-1], atol=1e-5
        )


@pytest.mark.parametrize("name", EVERYWHERE[:6] + POSITIVE + ["special_spherical_bessel_j0"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_zero_and_negative(name: str, dtype: torch.dtype) -> None:
    agree(f"aten::{name}", torch.tensor([0.0, -0.0, -1, 1e-30, float("nan")], dtype=dtype))


@pytest.mark.parametrize("name", ["special_i0e", "special_i1e", *POSITIVE[2:], "special_spherical_bessel_j0"])
def test_infinity(name: str) -> None:
    agree(f"aten::{name}", torch.tensor([float("inf"), 1e30]))


@pytest.mark.parametrize("name", EVERYWHERE + POSITIVE)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_give_the_default_dtype(name: str, dtype: torch.dtype) -> None:
    agree(f"aten::{name}", torch.tensor([0, 1, 3, 30]).to(dtype))
