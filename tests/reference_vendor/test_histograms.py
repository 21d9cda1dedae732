from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import FLOATS, INTEGERS, agree, given, run, values
from hypothesis import strategies as st

import flroute
from flroute.vendor import Unsupported

SHAPES = st.lists(st.integers(1, 5), max_size=3).map(tuple)


@given(data=st.data(), dtype=st.sampled_from(FLOATS), bins=st.integers(1, 7))
def test_histc(data: Any, dtype: torch.dtype, bins: int) -> None:
    x = data.draw(values(data.draw(SHAPES), dtype))
    agree("aten::histc", x, bins)
    agree("aten::histc", x, bins, -2, 2)
    agree("aten::histc", torch.tensor([0.0, 0.5, 1.0, float("nan"), 2.0], dtype=dtype), bins, 0, 1)


def test_integers_are_counted_too_as_on_cuda() -> None:
    with flroute.enable(device="reference", fallback="error"):
        counts = torch.histc(torch.tensor([0, 1, 1, 3, 7]), bins=4, min=0, max=3)
    assert counts.cpu().tolist() == [1, 2, 0, 1]
    assert counts.dtype is torch.int64


@pytest.mark.parametrize(("bins", "low", "high"), [(0, 0, 1), (3, 2, 1), (3, 0, float("inf"))])
def test_impossible_bins_are_left_to_the_host(bins: int, low: float, high: float) -> None:
    with pytest.raises(Unsupported):
        run("aten::histc", torch.ones(2), bins, low, high)


@given(data=st.data(), dtype=st.sampled_from(INTEGERS), weights=st.sampled_from([None, *FLOATS]))
def test_bincount(data: Any, dtype: torch.dtype, weights: torch.dtype | None) -> None:
    x = torch.tensor(data.draw(st.lists(st.integers(0, 9), max_size=12)), dtype=dtype)
    weight = None if weights is None else data.draw(values(tuple(x.shape), weights))
    agree("aten::bincount", x, weight, data.draw(st.integers(0, 12)))


def test_negative_numbers_are_left_to_the_host() -> None:
    with pytest.raises(Unsupported):
        run("aten::bincount", torch.tensor([1, -1]))


@given(
    data=st.data(),
    dtype=st.sampled_from(FLOATS),
    bins=st.integers(1, 6),
    weighted=st.booleans(),
    density=st.booleans(),
)
def test_histograms(data: Any, dtype: torch.dtype, bins: int, weighted: bool, density: bool) -> None:
    x = data.draw(values(data.draw(SHAPES), dtype))
    weight = data.draw(values(tuple(x.shape), dtype)).abs() + 1 if weighted else None
    agree("aten::histogram.bin_ct", x, bins, weight=weight, density=density)
    agree("aten::histogram.bin_ct", x, bins, range=[-20.0, 20.0], weight=weight, density=density)
    edges = torch.cat([torch.tensor([-50.0], dtype=dtype), torch.randn(bins, dtype=dtype).sort().values])
    agree("aten::histogram.bins_tensor", x, edges, weight=weight)
    agree("aten::histogram.bin_ct", x.new_empty(0), bins)


@given(
    data=st.data(), dtype=st.sampled_from(FLOATS), bins=st.lists(st.integers(1, 4), min_size=1, max_size=3)
)
def test_histograms_of_points(data: Any, dtype: torch.dtype, bins: list[int]) -> None:
    x = data.draw(values((6, len(bins)), dtype))
    agree("aten::_histogramdd_bin_edges", x, bins)
    agree("aten::_histogramdd_from_bin_cts", x, bins)
    agree(
        "aten::_histogramdd_from_bin_cts",
        x,
        bins,
        range=[-3.0, 3.0] * len(bins),
        weight=torch.arange(6, dtype=dtype),
    )
    edges = [torch.linspace(-3, 3, count + 1, dtype=dtype) for count in bins]
    agree("aten::_histogramdd_from_bin_tensors", x, edges)
