"""The comparison itself: what it lets pass, and what it must not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .comparing import Leaves, assert_same, worse_than_host

CPU = torch.device("cpu")
PRECISE = torch.linspace(1, 2, 64, dtype=torch.float64)
HOST = (PRECISE + 0.01 * torch.sin(997 * PRECISE)).half()
"""The host's result, with a rounding error of its own."""


def device_with(times: float) -> torch.Tensor:
    """A result whose errors are the host's, so many times larger and elsewhere."""
    return (PRECISE + times * (HOST.double() - PRECISE).roll(1)).half()


def judged(actual: torch.Tensor, precise: Leaves = lambda: [PRECISE]) -> None:
    assert_same(actual, HOST, CPU, "result", inputs=[HOST], precise=precise)


@pytest.mark.parametrize("times", [-1.9, 0.0, 1.5, 1.9])
def test_twice_the_hosts_error_passes(times: float) -> None:
    assert not torch.allclose(device_with(times), HOST, rtol=4e-3, atol=2e-3)
    judged(device_with(times))


@pytest.mark.parametrize("times", [-2.3, 2.3, 5.0])
def test_more_does_not(times: float) -> None:
    with pytest.raises(AssertionError, match="against float64"):
        judged(device_with(times))


def test_nobody_to_judge_no_mercy() -> None:
    with pytest.raises(AssertionError, match="not close"):
        judged(device_with(0.0), lambda: None)


def test_many_errors_as_large_as_the_hosts_largest() -> None:
    worst = float((HOST.double() - PRECISE).abs().max())
    assert "root mean square" in str(worse_than_host((PRECISE + 1.9 * worst).half(), HOST, PRECISE))


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_infinities_and_nans_are_where_the_host_has_them(value: float) -> None:
    host, device = HOST.clone(), device_with(1.0)
    host[3] = device[3] = value
    assert worse_than_host(device, host, PRECISE) is None
    assert "elsewhere" in str(worse_than_host(device_with(1.0), host, PRECISE))
    device[3] = 1.0 if value != value else -value  # noqa: PLR0124 -- NaN
    assert "elsewhere" in str(worse_than_host(device, host, PRECISE))
    assert "elsewhere" in str(worse_than_host(device_with(1.0).index_fill_(0, torch.tensor(5), value), HOST, PRECISE))  # fmt: skip


def test_where_the_host_computed_noise_there_is_no_margin() -> None:
    precise = torch.full((4,), 1e-13, dtype=torch.float64)
    host = torch.full((4,), 1e-4)
    assert worse_than_host(host * 0.9, host, precise) is None
    assert worse_than_host(host * 1.1, host, precise) is not None


def test_one_rounding_is_allowed_where_the_host_is_right_by_luck() -> None:
    precise = torch.ones(4, dtype=torch.float64)
    host = torch.ones(4)
    assert worse_than_host(torch.full((4,), 1 - 2**-24), host, precise) is None
    assert worse_than_host(torch.full((4,), 1 + 2**-22), host, precise) is not None


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float64], ids=str)
def test_integers_and_float64_are_not_judged(dtype: torch.dtype) -> None:
    host = torch.zeros(3, dtype=dtype)
    with pytest.raises(AssertionError, match="not"):
        assert_same(host + host.new_ones(3), host, CPU, "result", inputs=[host], precise=lambda: [host])


@pytest.mark.parametrize("other", [None, torch.zeros(3, 2).t()], ids=["no mode", "mode"])
def test_strides_may_be_the_hosts_under_a_mode_values_not(other: Any) -> None:
    host = torch.arange(6.0).view(2, 3)
    device = host.t().contiguous().t()
    leaves: Leaves = lambda: None if other is None else [other]  # noqa: E731
    if other is None:
        with pytest.raises(AssertionError, match="strides"):
            assert_same(device, host, CPU, "result", under_mode=leaves)
    else:
        assert_same(device, host, CPU, "result", under_mode=leaves)
        with pytest.raises(AssertionError, match="not close"):
            assert_same(torch.zeros_like(device), host, CPU, "result", under_mode=leaves)
        with pytest.raises(AssertionError, match="strides"):
            assert_same(
                device.unsqueeze(0), host.unsqueeze(0), CPU, "result", under_mode=lambda: [host.unsqueeze(0)]
            )
