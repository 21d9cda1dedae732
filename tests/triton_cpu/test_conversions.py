"""Conversions round once, whatever lies between the types: against exact rounding of rational numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from flroute.reference_vendor.triton_cpu import direct

PRECISION = {torch.float16: (11, -24), torch.bfloat16: (8, -133), torch.float32: (24, -149)}
LARGEST = {dtype: Fraction(torch.finfo(dtype).max) for dtype in PRECISION}
WORDS = {torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32"}
BLOCK = 64


@triton.jit
def cast(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n).to(out.dtype.element_ty), mask=i < n)


@triton.jit
def cast_to_zero(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n).to(out.dtype.element_ty, fp_downcast_rounding="rtz")
    tl.store(out + i, v, mask=i < n)


@triton.jit
def write(out, value, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, (value + tl.zeros((BLOCK,), value.dtype)).to(tl.float64))


@triton.jit
def constant(out, C: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, (tl.load(out + i).to(KIND) + tl.full((BLOCK,), C, KIND)).to(tl.float64))


def rounded(x: Fraction, dtype: torch.dtype, *, to_zero: bool = False) -> float:
    """A rational number as the nearest of a type, ties to even, or the next one towards zero."""
    if x == 0:
        return 0.0
    digits, least = PRECISION[dtype]
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    exponent -= abs(x) < Fraction(2) ** exponent
    unit = Fraction(2) ** max(exponent - digits + 1, least)
    steps = math.trunc(x / unit) if to_zero else round(x / unit)  # round: ties to even
    value = steps * unit
    if abs(value) > LARGEST[dtype]:
        return math.copysign(float(LARGEST[dtype]) if to_zero else math.inf, x)
    return float(value)


def converted(x: torch.Tensor, dtype: torch.dtype, kernel: object = cast) -> torch.Tensor:
    out = torch.zeros(len(x), dtype=dtype)
    kernel[(triton.cdiv(len(x), BLOCK),)](x, out, len(x), BLOCK=BLOCK)
    return out


def near_ties(dtype: torch.dtype) -> st.SearchStrategy[Fraction]:
    """Numbers half-way between two of a type, and what lies next to them as closely as float64 can say."""
    digits, _ = PRECISION[dtype]
    return st.builds(
        lambda odd, exponent, nudge: Fraction(2 * odd + 1) * Fraction(2) ** exponent * (1 + nudge * Fraction(1, 2**45)),
        st.integers(-(2**digits), 2**digits), st.integers(-30, 6), st.sampled_from([-1, 0, 1]),
    )  # fmt: skip


HALVES = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@settings(max_examples=25)
@given(data=st.data())
def test_float64_is_rounded_once(dtype: torch.dtype, data: st.DataObject) -> None:
    near = st.one_of(near_ties(dtype).map(float), st.floats(allow_nan=False, allow_infinity=False))
    numbers = data.draw(st.lists(near, min_size=1, max_size=100))
    got = converted(torch.tensor(numbers, dtype=torch.float64), dtype)
    assert got.tolist() == [rounded(Fraction(x), dtype) for x in numbers]


@pytest.mark.parametrize(
    ("source", "dtype"),
    [(s, d) for s in (torch.float32, torch.float64) for d in PRECISION if s != d],
    ids=str,
)
@settings(max_examples=20)
@given(data=st.data())
def test_rounding_towards_zero(source: torch.dtype, dtype: torch.dtype, data: st.DataObject) -> None:
    width = 32 if source == torch.float32 else 64
    near = st.one_of(
        near_ties(dtype).map(lambda x: float(np.float32(x)) if width == 32 else float(x)),
        st.floats(allow_nan=False, allow_infinity=False, width=width),
    )
    numbers = data.draw(st.lists(near, min_size=1, max_size=100))
    got = converted(torch.tensor(numbers, dtype=source), dtype, cast_to_zero)
    assert got.tolist() == [rounded(Fraction(x), dtype, to_zero=True) for x in numbers]


def test_rounding_towards_zero_keeps_what_is_no_number() -> None:
    hidden = torch.tensor([0x7F800001], dtype=torch.int32).view(
        torch.float32
    )  # nothing in the bits that are kept
    x = torch.cat([torch.tensor([math.nan, math.inf, -math.inf, -0.0]), hidden])
    for dtype in HALVES:
        got = converted(x, dtype, cast_to_zero)
        torch.testing.assert_close(got, x.to(dtype), rtol=0, atol=0, equal_nan=True)
        assert torch.signbit(got[3])


@pytest.mark.parametrize("source", [torch.int32, torch.int64, torch.uint32, torch.uint64], ids=str)
@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@settings(max_examples=20)
@given(data=st.data())
def test_integers_are_rounded_once(source: torch.dtype, dtype: torch.dtype, data: st.DataObject) -> None:
    info, digits = torch.iinfo(source), PRECISION[dtype][0]
    near = st.builds(
        lambda odd, shift, by: (2 * odd + 1 << shift) + by,
        st.integers(2 ** (digits - 1), 2**digits - 1), st.integers(0, info.bits - digits - 1), st.integers(-1, 1),
    )  # fmt: skip
    whole = st.one_of(near.filter(lambda x: x <= info.max), st.integers(info.min, info.max))
    numbers = data.draw(st.lists(whole, min_size=1, max_size=100))
    x = torch.from_numpy(np.array(numbers, dtype=str(source).removeprefix("torch.")))
    assert converted(x, dtype).tolist() == [rounded(Fraction(n), dtype) for n in numbers]


@pytest.mark.parametrize(("source", "target"), [HALVES, HALVES[::-1]], ids=str)
def test_from_one_half_precision_to_the_other(source: torch.dtype, target: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(source)
    torch.testing.assert_close(converted(every, target), every.to(target), rtol=0, atol=0, equal_nan=True)


def test_a_bfloat16_that_is_copied_keeps_its_bits() -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    assert torch.equal(converted(every.view(torch.bfloat16), torch.bfloat16).view(torch.int16), every)


def test_a_nan_stays_one_in_half_precision() -> None:
    payloads = torch.tensor([0x7F800001, 0x7FFFFFFF, -1, -0x7FFFFF], dtype=torch.int32).view(torch.float32)
    for source in (payloads, payloads.double()):
        for dtype in HALVES:
            assert converted(source, dtype).isnan().all()


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.uint32, torch.int64], ids=str
)
@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_floats_to_integers_as_nvidia_has_it(source: torch.dtype, dtype: torch.dtype) -> None:
    """Cut off, kept in range, 8 bits of a 16-bit number; a NaN is 0, or the highest bit from or to 64 bits."""
    x = torch.tensor([math.nan, math.inf, -math.inf, 3e9, -3e9, 2.9, -2.9, 300.0, -1.0, 1e30], dtype=source)
    info = torch.iinfo(
        torch.int16 if dtype == torch.int8 else torch.uint16 if dtype == torch.uint8 else dtype
    )
    bits, width = info.bits, torch.iinfo(dtype).bits
    unknown = 1 << (bits - 1) if source == torch.float64 or bits == 64 else 0
    expected = [
        unknown
        if math.isnan(v)
        else min(max(math.trunc(v) if math.isfinite(v) else int(math.copysign(2**70, v)), info.min), info.max)
        for v in x.double().tolist()
    ]
    assert [v % 2**width for v in converted(x, dtype).tolist()] == [v % 2**width for v in expected]


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-3, 3.14159265, 1e-4, 65000.0])
def test_constants_are_numbers_of_their_type(dtype: torch.dtype, value: float) -> None:
    kind = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}[dtype]
    out = torch.zeros(BLOCK, dtype=torch.float64)
    constant[(1,)](out, C=value, KIND=kind, BLOCK=BLOCK)
    assert out[0].item() == torch.tensor(value, dtype=dtype).item()


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
def test_arguments_are_numbers_of_their_type(dtype: torch.dtype) -> None:
    """A kernel of one's own may take them in half precision: 1 + 2**-8 + 2**-40 is no tie of bfloat16."""
    for value in (0.1, 1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-11 + 2.0**-40, -1e-6, 1e5, math.inf):
        out = np.zeros(BLOCK)
        direct.load(write, {"out": "*fp64", "value": WORDS[dtype][1:]}, {"BLOCK": BLOCK})(1, out, value)
        assert out[0] == (rounded(Fraction(value), dtype) if math.isfinite(value) else value)
