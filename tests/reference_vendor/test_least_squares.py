from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import COMPLEX, FLOATS, given, values
from hypothesis import strategies as st

import flroute


def on_device(*args: torch.Tensor, **options: Any) -> Any:
    with flroute.enable("reference", fallback="error", default_device=False):
        return torch.linalg.lstsq(*(x.to("fl") for x in args), **options)


@given(
    data=st.data(),
    dtype=st.sampled_from([*FLOATS, *COMPLEX]),
    batch=st.sampled_from([(), (2,), (2, 3)]),
    rows=st.integers(1, 5),
    columns=st.integers(1, 5),
    vector=st.booleans(),
    driver=st.sampled_from([None, "gels", "gelsy", "gelsd", "gelss"]),
)
def test_least_squares(
    data: Any,
    dtype: torch.dtype,
    batch: tuple[int, ...],
    rows: int,
    columns: int,
    vector: bool,
    driver: str | None,
) -> None:
    a = data.draw(values((*batch, rows, columns), dtype)) / 4 + 5 * torch.eye(rows, columns, dtype=dtype)
    b = data.draw(values((*batch, rows) if vector and batch else (*batch, rows, 2), dtype))
    for made, expected in zip(
        on_device(a, b, driver=driver), torch.linalg.lstsq(a, b, driver=driver), strict=True
    ):
        assert made.stride() == expected.stride()
        torch.testing.assert_close(made.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_without_full_rank_the_shortest_solution() -> None:
    a = torch.tensor([[1.0, 1], [1, 1], [2, 2]], dtype=torch.float64)
    b = torch.arange(3.0, dtype=torch.float64)[:, None]
    for driver in ("gelsy", "gelsd", "gelss"):
        for made, expected in zip(
            on_device(a, b, driver=driver), torch.linalg.lstsq(a, b, driver=driver), strict=True
        ):
            torch.testing.assert_close(made.cpu(), expected)
    with pytest.raises(torch.linalg.LinAlgError, match="does not have full rank"):
        on_device(torch.eye(3, 2) * torch.tensor([1, 0]), b.float(), driver="gels")


@pytest.mark.parametrize("rcond", [-1.0, 0.1, 0.5])
def test_what_counts_as_zero(rcond: float) -> None:
    a, b = torch.diag(torch.tensor([1.0, 0.3, 0.05])), torch.ones(3, 1)
    for made, expected in zip(on_device(a, b, rcond=rcond, driver="gelsd"),
                              torch.linalg.lstsq(a, b, rcond=rcond, driver="gelsd"), strict=True):  # fmt: skip
        torch.testing.assert_close(made.cpu(), expected)


def test_gradient() -> None:
    a, b = torch.randn(4, 3, dtype=torch.float64) + torch.eye(4, 3), torch.randn(4, 2, dtype=torch.float64)
    grads = []
    for device in ("cpu", "fl"):
        x, y = (t.detach().to(device, copy=True).requires_grad_() for t in (a, b))
        with flroute.enable("reference", fallback="error", default_device=False):
            torch.linalg.lstsq(x, y).solution.square().sum().backward()
        grads.append([x.grad.cpu(), y.grad.cpu()])  # type: ignore[union-attr]
    torch.testing.assert_close(*grads)
