from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import COMPLEX, FLOATS, INTEGERS, agree, given, run, values
from hypothesis import strategies as st

from flroute.vendor import Unsupported

SIZES = st.tuples(*[st.integers(0, 7)] * 4)
FACTORS = st.sampled_from([0, 1, 0.5, -2])


@given(data=st.data(), dtype=st.sampled_from(FLOATS), sizes=SIZES, alpha=FACTORS, beta=FACTORS)
def test_products(data: Any, dtype: torch.dtype, sizes: tuple[int, ...], alpha: float, beta: float) -> None:
    b, n, k, m = sizes
    x, y = data.draw(values((n, k), dtype)), data.draw(values((k, m), dtype))
    agree("aten::mm", x, y)
    bias = data.draw(values(data.draw(st.sampled_from([(m,), (n, m), (1, m), (n, 1), ()])), dtype))
    agree("aten::addmm", bias, x, y, alpha=alpha, beta=beta)
    vector = data.draw(values((k,), dtype))
    agree("aten::mv", x, vector)
    agree("aten::addmv", data.draw(values((n,), dtype)), x, vector, alpha=alpha, beta=beta)
    agree("aten::dot", vector, data.draw(values((k,), dtype)))
    xs, ys = data.draw(values((b, n, k), dtype)), data.draw(values((b, k, m), dtype))
    agree("aten::bmm", xs, ys)
    agree("aten::vdot", vector, data.draw(values((k,), dtype)))
    agree("aten::addbmm", bias, xs, ys, alpha=alpha, beta=beta)
    agree(
        "aten::addr",
        bias,
        data.draw(values((n,), dtype)),
        data.draw(values((m,), dtype)),
        alpha=alpha,
        beta=beta,
    )
    agree("aten::baddbmm", data.draw(values((b, n, m), dtype)), xs, ys, alpha=alpha, beta=beta)


@given(data=st.data(), dtype=st.sampled_from([*INTEGERS, *COMPLEX]), factor=st.sampled_from([0, 1, 3]))
def test_products_of_integers_and_complex_numbers(data: Any, dtype: torch.dtype, factor: int) -> None:
    x, y = data.draw(values((2, 3, 4), dtype)), data.draw(values((2, 4, 5), dtype))
    agree("aten::mm", x[0], y[0])
    agree("aten::bmm", x, y)
    agree("aten::mv", x[0], y[0, :, 0])
    agree("aten::dot", x[0, 0], y[0, :, 0])
    agree("aten::vdot", x[0, 0], y[0, :, 0])
    bias = data.draw(values((3, 5), dtype))
    agree("aten::addmm", bias, x[0], y[0], alpha=factor, beta=factor)
    agree("aten::addbmm", bias, x, y, alpha=factor, beta=factor)
    agree("aten::addr", bias, x[0, :, 0], y[0, 0], alpha=factor, beta=factor)


def test_a_beta_of_zero_ignores_even_nan() -> None:
    agree("aten::addmm", torch.full((3, 2), float("nan")), torch.randn(3, 4), torch.randn(4, 2), beta=0)
    agree(
        "aten::baddbmm",
        torch.full((1, 3, 2), float("inf")),
        torch.randn(1, 3, 4),
        torch.randn(1, 4, 2),
        beta=0,
    )


def test_shapes_that_do_not_meet_are_left_to_the_host() -> None:
    for op, x, y in [
        ("mm", (2, 3), (2, 3)),
        ("bmm", (1, 2, 3), (2, 3, 2)),
        ("mv", (2, 3), (2,)),
        ("dot", (2,), (3,)),
    ]:
        with pytest.raises(Unsupported):
            run(f"aten::{op}", torch.ones(x), torch.ones(y))


def test_products_of_bytes_add_up_to_words() -> None:
    x = torch.randint(-128, 128, (17, 40), dtype=torch.int8, generator=torch.Generator().manual_seed(0))
    y = torch.randint(-128, 128, (40, 8), dtype=torch.int8, generator=torch.Generator().manual_seed(1))
    agree("aten::_int_mm", x, y)
    agree(
        "aten::_int_mm",
        torch.full((32, 64), -128, dtype=torch.int8),
        torch.full((64, 8), -128, dtype=torch.int8),
    )
