"""How far tensors are apart, in every measure, and against a tolerance."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import flroute
from flroute.drift.measures import Difference, difference, ulp
from flroute.drift.tolerances import Tolerance, exceeds, excess, extent_of, reading

BLOCK_AND_MORE = (1 << 15) + 3


def test_each_measure_of_a_known_pair() -> None:
    value = torch.tensor([1.0, 2.5, -4.0, 0.0])
    found = difference(value, torch.tensor([1.0, 2.0, -4.0, 0.5], dtype=torch.float64))
    assert (found.max_abs, found.mean_abs, found.max_rel, found.numel) == (0.5, 0.25, 1.0, 4)
    assert found.mean_rel == (0.25 + 1.0) / 4
    assert found.scale == 4.0
    assert found.max_ulp == 0.5 / (torch.finfo(torch.float32).eps / 2)
    assert found.cosine == pytest.approx(22 / math.sqrt(23.25 * 21.25))


@given(hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(-1e6, 1e6)))
def test_rounding_to_a_dtype_is_off_by_half_a_unit_in_the_last_place(exact: np.ndarray) -> None:
    reference = torch.from_numpy(exact)
    for dtype in (torch.float32, torch.bfloat16):
        assert difference(reference.to(dtype), reference).max_ulp <= 0.5
        one_up = torch.nextafter(reference.to(dtype), torch.tensor(math.inf, dtype=dtype))
        assert difference(one_up, reference.to(dtype).double()).max_ulp in (
            0.5,
            1.0,
        )  # half below a power of two


@given(hnp.arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32)))
def test_a_tensor_is_no_different_from_itself(values: np.ndarray) -> None:
    tensor = torch.from_numpy(values)
    found = difference(tensor, tensor.double())
    assert found.is_exact
    assert found.cosine == 1.0
    assert excess(tensor, tensor.double(), Tolerance(0.0, 0.0, "")) == 0.0


@given(hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(0, 1e300)))
def test_a_unit_in_the_last_place_is_that_of_the_power_of_two_below(sizes: np.ndarray) -> None:
    for dtype in (torch.float16, torch.float32, torch.float64):
        info = torch.finfo(dtype)
        exponents = np.frexp(np.maximum(sizes, info.smallest_normal))[1]
        assert np.array_equal(ulp(sizes, info), np.ldexp(info.eps, exponents - 1))


@given(
    hnp.arrays(np.float32, 5, elements=st.floats(width=32)),
    hnp.arrays(np.float64, (2, 5), elements=st.floats(-1e9, 1e9) | st.sampled_from([math.inf, math.nan])),
)
def test_one_pass_tells_what_two_would(values: np.ndarray, references: np.ndarray) -> None:
    value, (exact, carried) = torch.from_numpy(values), torch.from_numpy(references)
    found = extent_of(value, exact, carried)
    if not (np.isfinite(values).all() and np.isfinite(references[0]).all()):
        assert found is None
        return
    apart = (value.double() - carried).abs().max()
    assert found is not None
    assert found.error == (value.double() - exact).abs().max()
    assert found.scale == exact.abs().max()
    assert found.apart == (apart if apart.isfinite() else math.inf)


@given(
    hnp.arrays(np.float64, 6, elements=st.floats(-1e6, 1e6)),
    hnp.arrays(np.float64, 6, elements=st.floats(-8, 8) | st.sampled_from([0.0, math.inf, math.nan])),
    st.sampled_from([0.0, 2.0]),
    st.sampled_from([0.0, 1.0, 4.0]),
)
def test_a_quick_look_says_what_a_look_at_every_element_does(
    exact: np.ndarray, roundings: np.ndarray, rtol_eps: float, atol_eps: float
) -> None:
    """A value is off by some roundings of its own, of the largest, or is no number at all."""
    info = torch.finfo(torch.float32)
    scale = np.abs(exact).max()
    with np.errstate(over="ignore", invalid="ignore"):
        value = (exact + roundings * info.eps * np.where(np.arange(len(exact)) % 2, scale, exact)).astype(
            np.float32
        )
        error = np.abs(value - exact)
    tolerance = Tolerance(rtol_eps * info.eps, atol_eps * info.eps, "")
    allowed = tolerance.rtol * np.abs(exact) + tolerance.atol * scale + info.smallest_normal
    worst = np.where(np.isfinite(error), error / allowed, math.inf).max()
    found = reading(torch.from_numpy(value), torch.from_numpy(exact), tolerance)
    assert (found.excess > 1) == (worst > 1)
    assert found.excess >= worst * (1 - 1e-9)
    if worst > 1:
        assert found.excess == pytest.approx(worst)
    assert found.max_abs == error[np.isfinite(error)].max(initial=0.0)
    assert (found.scale, found.finite) == (scale, bool(np.isfinite(value).all()))


@given(hnp.arrays(np.int64, 6, elements=st.integers(-(2**63), 2**63 - 1)), st.data())
def test_integers_that_are_equal_are_as_far_as_a_look_at_each_says(
    values: np.ndarray, data: st.DataObject
) -> None:
    other = values.copy()
    other[data.draw(st.integers(0, 5))] ^= data.draw(st.sampled_from([0, 1, 1 << 40]))
    found = reading(torch.from_numpy(other), torch.from_numpy(values), Tolerance(0.0, 0.0, ""))
    assert (found.excess > 0) == (not np.array_equal(values, other))
    assert found.scale == float(max(abs(int(value)) for value in values))


@pytest.mark.parametrize("place", [0, BLOCK_AND_MORE // 2, BLOCK_AND_MORE - 1])
def test_one_pass_sees_every_element(place: int) -> None:
    exact = torch.zeros(BLOCK_AND_MORE, dtype=torch.float64)
    one, two = exact.clone(), exact.clone()
    one[place], two[place] = 1.0, -2.0
    assert extent_of(exact.float(), one, two) == (1.0, 1.0, 2.0)
    one[place] = math.nan
    assert extent_of(exact.float(), one, two) is None
    assert extent_of(exact.float(), exact, one) == (0.0, 0.0, math.inf)


def test_a_difference_is_found_wherever_it_is() -> None:
    reference = torch.randn(BLOCK_AND_MORE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for place in (0, BLOCK_AND_MORE // 2, BLOCK_AND_MORE - 1):
        value = reference.clone()
        value[place] += 1e-3
        assert difference(value, reference).max_abs == pytest.approx(1e-3)
        assert excess(value, reference, Tolerance(1e-6, 1e-6, "")) > 50


def test_what_is_infinite_or_no_number_in_both_is_equal_and_counts_otherwise() -> None:
    inf, nan = math.inf, math.nan
    value = torch.tensor([nan, inf, -inf, inf, nan, 1.0, 2.0])
    reference = torch.tensor([nan, inf, -inf, -inf, 1.0, inf, 2.5], dtype=torch.float64)
    found = difference(value, reference)
    assert (found.mismatched_nonfinite, found.max_abs) == (3, 0.5)
    assert exceeds(found, Tolerance(1.0, 1.0, ""))
    assert excess(value, reference, Tolerance(1.0, 1.0, "")) == inf
    assert excess(value[:3], reference[:3], Tolerance(0.0, 0.0, "")) == 0


def test_an_infinity_is_right_where_the_dtype_holds_no_more() -> None:
    value = torch.tensor([math.inf, 1.0], dtype=torch.float16)
    assert difference(value, torch.tensor([1e6, 1.0], dtype=torch.float64)).is_exact
    assert difference(value, torch.tensor([1e3, 1.0], dtype=torch.float64)).mismatched_nonfinite == 1
    assert excess(value, torch.tensor([1e6, 1.0], dtype=torch.float64), Tolerance(0.0, 0.0, "")) == 0
    assert excess(value, torch.tensor([-1e6, 1.0], dtype=torch.float64), Tolerance(0.1, 0.1, "")) == math.inf


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64])
def test_integers_and_truth_values_are_exact(dtype: torch.dtype) -> None:
    ones = torch.ones(4, dtype=dtype)
    other = ones.clone()
    other[1] = 0
    assert difference(ones, ones).is_exact
    assert difference(other, ones).max_abs == 1
    assert exceeds(difference(other, ones), Tolerance(0.0, 0.0, ""))


def test_large_integers_that_round_to_the_same_are_different() -> None:
    one, other = torch.tensor([2**62]), torch.tensor([2**62 + 1])
    assert difference(one, other).max_abs == 1
    assert excess(one, other, Tolerance(0.0, 0.0, "")) == math.inf


@pytest.mark.parametrize(
    "dtype", [torch.complex64, torch.complex32, torch.float16, torch.bfloat16, torch.float8_e5m2]
)
@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_every_float_and_complex_dtype(dtype: torch.dtype) -> None:
    exact = torch.tensor([1.0, 2.0, 4.0], dtype=torch.complex128 if dtype.is_complex else torch.float64)
    assert difference(exact.to(dtype), exact).is_exact
    assert difference((exact * 2).to(dtype), exact).max_abs == 4.0
    assert difference((exact * 2).to(dtype), exact).cosine == pytest.approx(1.0)


def test_empty_tensors_do_not_differ() -> None:
    assert difference(torch.empty(0, 3), torch.empty(0, 3)) == Difference()
    with pytest.raises(ValueError, match="one shape"):
        difference(torch.empty(0, 3), torch.empty(3, 0))


def test_values_on_a_device_views_and_sparse_tensors() -> None:
    host = torch.arange(6.0).reshape(2, 3)
    assert difference(host.to(flroute.device("reference")).t(), host.t()).is_exact
    assert difference(host.to_sparse(), host).is_exact
