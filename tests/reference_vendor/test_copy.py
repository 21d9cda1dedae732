from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import FLOATS, INTEGERS, KERNELS, SHAPES, agree, broadcastable, given, laid_out, run, values
from hypothesis import strategies as st

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


def test_bfloat16_is_left_to_the_host() -> None:
    predicate = next(kernel.when for kernel in KERNELS if kernel.op == "aten::copy_")
    assert predicate is not None
    assert predicate(torch.ones(1), torch.ones(1)) is True
    assert "bfloat16" in str(predicate(torch.ones(1), torch.ones(1, dtype=torch.bfloat16)))


@pytest.mark.parametrize("dtype", EVERY)
def test_fill_and_zero(dtype: torch.dtype) -> None:
    x = torch.empty(3, 2, dtype=dtype).t()
    run("aten::fill_.Scalar", x, True if dtype is torch.bool else 3)
    assert torch.equal(x, torch.full((2, 3), 3, dtype=dtype))
    run("aten::fill_.Tensor", x, torch.tensor(1.7))
    assert torch.equal(x, torch.zeros(2, 3, dtype=dtype).fill_(torch.tensor(1.7)))
    run("aten::zero_", x)
    assert not x.any()


@pytest.mark.parametrize("value", [True, 0, 2, 1.0, 0.0, float("nan")])
def test_bool_is_filled_with_whether_a_number_is_not_zero(value: float) -> None:
    x = torch.zeros(3, dtype=torch.bool)
    run("aten::fill_.Scalar", x, value)
    assert torch.equal(x, torch.zeros(3, dtype=torch.bool).fill_(value))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(torch.bool, 1j), (torch.int8, 300), (torch.int32, float("nan")), (torch.float32, 1j)],
)
def test_values_that_do_not_fit_are_left_to_the_host(dtype: torch.dtype, value: object) -> None:
    with pytest.raises(Unsupported):
        run("aten::fill_.Scalar", torch.zeros(2, dtype=dtype), value)


@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_cat(data: Any, dtype: torch.dtype) -> None:
    shape = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple))
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    axis = dim % len(shape)
    parts = [data.draw(values((*shape[:axis], n, *shape[axis + 1 :]), dtype)) for n in sizes]
    agree("aten::cat", parts, dim)
    agree("aten::cat", [torch.empty(0, dtype=dtype), *parts], dim)


@given(data=st.data(), dtype=st.sampled_from(DTYPES), diagonal=st.integers(-3, 3))
def test_triangles_and_flips(data: Any, dtype: torch.dtype, diagonal: int) -> None:
    x = data.draw(values(data.draw(st.lists(st.integers(0, 4), min_size=2, max_size=4).map(tuple)), dtype))
    agree("aten::tril", x, diagonal)
    agree("aten::triu", x, diagonal)
    agree("aten::flip", x, data.draw(st.sampled_from([[], [0], [-1], [0, 1], [1, -x.ndim]])))


@given(
    data=st.data(), dtype=st.sampled_from(FLOATS), pad=st.lists(st.integers(-2, 3), min_size=4, max_size=4)
)
def test_constant_pad(data: Any, dtype: torch.dtype, pad: list[int]) -> None:
    x = data.draw(values((2, 4, 5), dtype))
    agree("aten::constant_pad_nd", x, pad, 1.5)
    agree("aten::constant_pad_nd", x, pad[:2])


@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_index_select_and_gather(data: Any, dtype: torch.dtype) -> None:
    x = data.draw(values(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)), dtype))
    dim = data.draw(st.integers(-x.ndim, x.ndim - 1))
    agree("aten::index_select", x, dim, torch.randint(0, x.shape[dim], (data.draw(st.integers(0, 5)),)))
    smaller = [data.draw(st.integers(1, size)) for size in x.shape]
    agree("aten::gather", x, dim, torch.randint(0, x.shape[dim], smaller))


@pytest.mark.parametrize("index", [-1, 3])
def test_indices_out_of_range(index: int) -> None:
    with pytest.raises(IndexError, match="index out of range in self"):
        run("aten::index_select", torch.ones(3), 0, torch.tensor([index]))
    with pytest.raises(Unsupported):
        run("aten::gather", torch.ones(3), 0, torch.tensor([index]))


@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_masked_fill(data: Any, dtype: torch.dtype) -> None:
    x, y = data.draw(broadcastable(dtype))
    mask = data.draw(values(tuple(y.shape), torch.bool))
    agree("aten::masked_fill.Scalar", x, mask, float("-inf"))
    agree("aten::masked_fill.Scalar", x, mask, 0)
    agree("aten::masked_fill.Tensor", x, mask, torch.tensor(2.5, dtype=dtype))
