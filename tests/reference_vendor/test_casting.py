from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import FLOATS, INTEGERS, SHAPES, given, laid_out, run
from hypothesis import strategies as st

import flroute
from flroute.vendor import Unsupported

DTYPES = [*FLOATS, *INTEGERS, torch.bool]
EVERY = [*DTYPES, torch.float16, torch.complex64, torch.complex128]


def _of(dtype: torch.dtype) -> torch.Tensor:
    values = [[0.0, -0.0, 1.5], [-1.5, 2.9, 100.0]]
    x = torch.tensor(values, dtype=torch.complex128 if dtype.is_complex else torch.float64)
    return ((x.abs() if dtype is torch.uint8 else x) * ((1 + 2j) if dtype.is_complex else 1)).to(dtype)


@pytest.mark.filterwarnings("ignore:Casting complex values")
@pytest.mark.parametrize("target", EVERY)
@pytest.mark.parametrize("source", EVERY)
def test_copy_casts(source: torch.dtype, target: torch.dtype) -> None:
    made, expected = torch.zeros(2, 3, dtype=target), torch.zeros(2, 3, dtype=target)
    run("aten::copy_", made, _of(source))
    assert torch.equal(made, expected.copy_(_of(source)))


@given(data=st.data(), layouts=st.tuples(*[st.sampled_from(["contiguous", "transposed", "sliced"])] * 2))
def test_copy_between_strides_and_by_broadcast(data: Any, layouts: tuple[str, str]) -> None:
    shape = data.draw(SHAPES)
    target, source = laid_out(torch.zeros(shape), layouts[0]), laid_out(torch.randn(shape), layouts[1])
    run("aten::copy_", target, source)
    assert torch.equal(target, source)
    run("aten::copy_", target, torch.tensor(3.0))
    assert (target == 3).all()


def test_copy_within_one_storage() -> None:
    x = torch.arange(10.0)
    run("aten::copy_", x[2:], x[:-2].clone())
    y = torch.arange(10.0)
    run("aten::copy_", y[2:], y[:-2])
    assert torch.equal(x, y)


ODD = [torch.bfloat16, torch.complex32]
HARD = [
    1 + 2**-8,
    1 + 3 * 2**-8,
    1 + 2**-8 + 2**-20,
    3.4e38,
    -3.4e38,
    1e-45,
    -0.0,
    float("inf"),
    float("nan"),
    0.1,
    -2.7,
]


@pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")
@pytest.mark.parametrize("other", [*EVERY, *ODD])
@pytest.mark.parametrize("odd", ODD)
def test_copy_casts_to_and_from_dtypes_that_numpy_lacks(odd: torch.dtype, other: torch.dtype) -> None:
    """Through the device, for numpy has no such arrays: rounded to the nearest, to even where two are as near."""
    x = torch.tensor(HARD, dtype=torch.complex64 if other.is_complex else torch.float64)
    if not (other.is_floating_point or other.is_complex):
        x = torch.tensor([0, 1, 100, 127], dtype=torch.int64)
    x = x.to(other)
    for source, target in ((x, odd), (x.to(odd), other)):
        expected = source.to(target)
        with flroute.enable(device="reference", fallback="error"):
            made = torch.empty(source.shape, dtype=target, device="fl")
            made.copy_(source.to("fl"))
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(target.itemsize)
        same = made.cpu() if bits is None else made.cpu().view(bits)
        assert torch.equal(same, expected if bits is None else expected.view(bits)) or torch.equal(
            torch.nan_to_num(made.cpu().to(torch.complex128)), torch.nan_to_num(expected.to(torch.complex128))
        )


@pytest.mark.parametrize("dtype", EVERY)
def test_fill_and_zero(dtype: torch.dtype) -> None:
    x = torch.empty(3, 2, dtype=dtype).t()
    run("aten::fill_.Scalar", x, True if dtype is torch.bool else 3)
    assert torch.equal(x, torch.full((2, 3), 3, dtype=dtype))
    run("aten::fill_.Tensor", x, torch.tensor(1.7))
    assert torch.equal(x, torch.zeros(2, 3, dtype=dtype).fill_(torch.tensor(1.7)))
    run("aten::zero_", x)
    assert not x.any()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(torch.int8, 300), (torch.int32, float("nan")), (torch.float32, 1j), (torch.float16, 1e5)],
)
def test_values_that_do_not_fit_are_left_to_the_host(dtype: torch.dtype, value: object) -> None:
    with pytest.raises(Unsupported):
        run("aten::fill_.Scalar", torch.zeros(2, dtype=dtype), value)


# -- casts of one device, as one op ----------------------------------------------------------------------------------

CASTABLE = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.bool,
]  # fmt: skip
HALVES = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("target", CASTABLE, ids=str)
@pytest.mark.parametrize("source", CASTABLE, ids=str)
def test_a_cast_is_one_native_op_with_the_hosts_bits(source: torch.dtype, target: torch.dtype) -> None:
    numbers = torch.tensor([0.0, 1.0, 1.5, 100.0, 3.0 + 2**-9, 1 + 2**-8, 1 + 3 * 2**-8, 77.7])
    x = numbers.to(source)
    with flroute.enable("reference", fallback="error", default_device=False) as session:
        there = x.to("fl")
        found = [there.to(target, copy=True) for _ in range(3)]  # the last on the hot path
    casts = [d for d in session.decisions if d.op == "aten::_to_copy" and d.route == "native"]
    assert sum(d.calls for d in casts) == 3
    halves_and_float32 = {source, target} <= {torch.float32, *HALVES} and source is not target
    expected = "reference/triton:cast" if halves_and_float32 else "reference/numpy:to_copy"
    assert {d.kernel for d in casts} == {expected}
    for made in found:
        assert made.dtype is target
        assert torch.equal(made.cpu(), x.to(target))
        assert made.data_ptr() != there.data_ptr()


@pytest.mark.parametrize("implementation", ["numpy", "triton"])
@pytest.mark.parametrize("target", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("source", [torch.float32, *HALVES], ids=str)
def test_every_half_precision_number_is_cast_as_on_the_host(
    source: torch.dtype, target: torch.dtype, implementation: str
) -> None:
    if source is target:
        return
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32)
    x = (
        bits.to(torch.int16).view(source)
        if source in HALVES
        else (bits << 16 | bits * 40503 & 0xFFFF).view(source)
    )
    order = {"aten::_to_copy": [implementation]}
    with flroute.enable("reference", fallback="error", default_device=False, order=order):
        found = x.to("fl").to(target).cpu()
    torch.testing.assert_close(found, x.to(target), rtol=0, atol=0, equal_nan=True)


def test_what_is_laid_out_otherwise_keeps_its_order() -> None:
    x = torch.randn(2, 3, 4, 5)
    for view in (x.transpose(0, 2), x.to(memory_format=torch.channels_last), x[:, ::2]):
        for dtype in (torch.bfloat16, torch.float64):
            assert view.to("fl").to(dtype).stride() == view.to(dtype).stride()
    there = x.to("fl")
    assert there.to(torch.bfloat16, memory_format=torch.channels_last).stride() == (60, 1, 15, 3)
    assert there.to("cpu", torch.bfloat16).device.type == "cpu"


def test_16_bits_are_bfloat16_only_where_the_call_speaks_of_it() -> None:
    """On the hot path an array of 16 bits has no name of its own."""
    x = torch.tensor([1, 2, 300]).to("fl")
    with flroute.enable("reference", fallback="allow", default_device=False):
        for _ in range(3):
            assert x.to(torch.bfloat16).dtype is torch.bfloat16
            assert x.to(torch.bfloat16).to(torch.uint16).dtype is torch.uint16
            assert x.to(torch.uint16).dtype is torch.uint16
            assert x.float().sum(dtype=torch.bfloat16).dtype is torch.bfloat16
