from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from against_host import FLOATS, INTEGERS, SHAPES, agree, given, run, values
from hypothesis import strategies as st

from flroute.reference_vendor.error_functions import erf_of_doubles, erfc_of_doubles

FUNCTIONS = ["erf", "erfc", "erfinv", "special_erfcx", "special_ndtri", "special_log_ndtr"]


@pytest.mark.parametrize("name", FUNCTIONS)
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_one_tensor(name: str, data: st.DataObject, dtype: torch.dtype) -> None:
    x = data.draw(values(data.draw(SHAPES), dtype, special=True))
    if name == "special_erfcx":  # its condition grows with x squared: exp(x * x) of a rounded square
        x = x.clamp(min=-3)
    agree(f"aten::{name}", x)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool])
def test_integers_and_bool_give_the_default_dtype(name: str, dtype: torch.dtype) -> None:
    agree(f"aten::{name}", torch.tensor([0, 1, 2, 1]).to(dtype))


def test_double_precision_is_kept() -> None:
    x = np.linspace(-6, 26, 20001)
    np.testing.assert_allclose(erf_of_doubles(x), [math.erf(value) for value in x], rtol=1e-15)
    np.testing.assert_allclose(erfc_of_doubles(x), [math.erfc(value) for value in x], rtol=3e-15)
    np.testing.assert_array_equal(erfc_of_doubles(np.array([np.inf, -np.inf, np.nan])), [0, 2, np.nan])


def test_small_arguments_keep_their_digits() -> None:
    x = torch.logspace(-300, 0, 500, dtype=torch.float64)
    np.testing.assert_allclose(run("aten::erf", x), torch.erf(x), rtol=1e-15)
    np.testing.assert_allclose(run("aten::erfinv", x), torch.erfinv(x), rtol=2e-15)


def test_inverses_in_the_tails() -> None:
    tail = torch.logspace(-16, -1, 200, dtype=torch.float64)
    np.testing.assert_allclose(run("aten::erfinv", 1 - tail), torch.erfinv(1 - tail), rtol=2e-15)
    p = torch.cat([torch.logspace(-300, -0.3, 300, dtype=torch.float64), 1 - tail])
    np.testing.assert_allclose(run("aten::special_ndtri", p), torch.special.ndtri(p), rtol=3e-15)
    ends = torch.tensor([-1.0, 1, 0, -0.0, 1.5, -1.5, float("nan")])
    agree("aten::erfinv", ends)
    agree("aten::special_ndtri", ends)


def test_gelu_over_many_blocks_and_layouts() -> None:
    x = torch.randn(3, 50_000)
    for approximate in ("none", "tanh"):
        for layout in (x, x.t(), x[:, ::2]):
            agree("aten::gelu", layout, approximate=approximate)
            agree("aten::gelu_backward", torch.ones(1).expand(layout.shape), layout, approximate=approximate)
