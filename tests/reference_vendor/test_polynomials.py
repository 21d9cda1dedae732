from __future__ import annotations

import pytest
import torch
from against_host import FLOATS, agree, run

from flroute.vendor import Unsupported

NAMES = [f"{shifted}chebyshev_polynomial_{kind}" for shifted in ("", "shifted_") for kind in "tuvw"]
NAMES += ["hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_degrees(name: str, dtype: torch.dtype) -> None:
    x = torch.linspace(-1.5, 1.5, 31, dtype=dtype)
    for degree in (-2, 0, 1, 2, 5, 12):
        agree(f"aten::special_{name}", x, torch.tensor(float(degree), dtype=dtype))
    agree(f"aten::special_{name}", x[:, None], torch.tensor([0, 3, -1, 2.7], dtype=dtype))


@pytest.mark.parametrize("name", NAMES)
def test_integer_degrees_and_arguments(name: str) -> None:
    agree(f"aten::special_{name}", torch.rand(4, 1), torch.arange(5))
    agree(f"aten::special_{name}", torch.arange(-2, 3), torch.arange(5))


def test_degrees_beyond_all_use_are_left_to_the_host() -> None:
    for degree in (1e9, float("nan"), float("inf")):
        with pytest.raises(Unsupported):
            run("aten::special_hermite_polynomial_h", torch.rand(3), torch.tensor(degree))
