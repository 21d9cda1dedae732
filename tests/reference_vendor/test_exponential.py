"""Exponentials of many elements, which run in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from against_host import run


@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (-87.0, 88.0), (-110.0, 100.0)])
def test_many_exponentials_are_off_by_less_than_twice_the_hosts_error(bounds: tuple[float, float]) -> None:
    x = torch.empty(100_003).uniform_(*bounds, generator=torch.Generator().manual_seed(0))
    exact = torch.exp(x.double()).numpy()
    with np.errstate(over="ignore"):
        unit = np.spacing(exact.astype(np.float32)).astype(np.float64)
    ours = np.abs(run("aten::exp", x) - exact)
    finite = np.isfinite(ours)
    assert (ours[finite] <= 1.1 * unit[finite]).all()
    theirs = np.abs(torch.exp(x).numpy() - exact)
    assert np.mean(ours[finite] / unit[finite]) <= 2 * np.mean(theirs[finite] / unit[finite])


def test_what_is_no_number_stays_none() -> None:
    x = torch.linspace(-2, 2, 40_000)
    x[5], x[39_000], x[39_001] = float("nan"), float("inf"), -float("inf")
    made = run("aten::exp", x.reshape(200, 200).t())
    torch.testing.assert_close(torch.from_numpy(made), x.reshape(200, 200).t().exp(), equal_nan=True)
