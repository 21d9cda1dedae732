"""Ops whose results have a shape that only the data tell, in every dtype: PyTorch has no rule there that names shape and dtype."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves

import flroute
from flroute.vendor import Kernel
from support import Vendors, throw_away_vendors

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
DTYPES = (*FLOATS, *SIGNED, *UNSIGNED, *COMPLEX, torch.bool)

Case = Callable[[torch.Tensor], Any]


def t(*values: Any, like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.tensor(values, device=like.device, dtype=dtype)


CASES: dict[str, Case] = {
    "nonzero": lambda x: x.nonzero(),
    "nonzero as a tuple": lambda x: x.nonzero(as_tuple=True),
    "nonzero out": lambda x: torch.nonzero(x, out=t(like=x, dtype=torch.int64)),
    "nonzero of a number": lambda x: x[0, 0].nonzero(),
    "nonzero_static": lambda x: torch.nonzero_static(x, size=3),
    "argwhere": torch.argwhere,
    "mask": lambda x: x[t(*[[True, False, True]] * 2, like=x)],
    "mask of rows": lambda x: x[t(True, False, like=x)],
    "mask of columns": lambda x: x[:, t(True, False, True, like=x)],
    "mask of nothing": lambda x: x[t(False, False, like=x)],
    "mask of bytes": lambda x: x[t(1, 0, like=x, dtype=torch.uint8)],
    "mask without dimensions": lambda x: x[torch.ones((), dtype=torch.bool, device=x.device)],
    "mask and indices": lambda x: x[t(True, False, like=x), t(1, like=x)],
    "masked_select": lambda x: torch.masked_select(x, t(True, False, True, like=x)),
    "masked_select out": lambda x: torch.masked_select(x, t(True, False, True, like=x), out=t(like=x, dtype=x.dtype)),
    "masked_select of a number": lambda x: torch.masked_select(x[0, 0], t(True, like=x)),
    "combinations": lambda x: torch.combinations(x[0]),
    "cartesian_prod": lambda x: torch.cartesian_prod(x[0], x[1]),
    "unique": torch.unique,
    "unique with all": lambda x: torch.unique(x, return_inverse=True, return_counts=True),
    "unique of slices": lambda x: torch.unique(x, dim=0, return_inverse=True, return_counts=True),
    "_unique": lambda x: torch._unique(x, return_inverse=True),
    "unique_consecutive": lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
    "unique_consecutive of slices": lambda x: torch.unique_consecutive(x, dim=1, return_counts=True),
    "unique_dim_consecutive": lambda x: torch.ops.aten.unique_dim_consecutive(x, 1, True, True),
    "repeat_interleave": lambda x: torch.repeat_interleave(x, t(1, 2, like=x), dim=0),
    "repeat_interleave alone": lambda x: torch.repeat_interleave(x[0]),
    "bincount": lambda x: torch.bincount(x.flatten()),
    "bincount of weights": lambda x: torch.bincount(t(0, 1, 1, 3, like=x), weights=x.flatten()[:4]),
    "equal": lambda x: torch.equal(x, x.clone()),
    "comparison": lambda x: x == x[0],
}  # fmt: skip
LEFT_TO_HOST = {("bincount of weights", dtype) for dtype in (*COMPLEX, *UNSIGNED[1:])} | {
    ("comparison", torch.complex32)
}


"""Weights of which the host drops the imaginary part or which numpy cannot add up, and dtypes that only move."""


def outcome(case: Case, x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return case(x)
        except Exception as error:  # to be compared by its type
            return type(error)


def assert_same(made: Any, expected: Any) -> None:
    ours, theirs = tree_leaves(made), tree_leaves(expected)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        bits = [x.cpu().contiguous().flatten().view(torch.uint8) for x in (a, b)]
        assert torch.equal(*bits)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_in_every_dtype_of_the_host(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1, 2], [1, 0, 3]]).to(dtype)
    expected = outcome(CASES[name], x)
    left = (name, dtype) in LEFT_TO_HOST
    with flroute.enable("reference", fallback="allow" if left else "error", default_device=False) as session:
        made = outcome(CASES[name], x.to("fl"))
    assert bool(session.fallbacks) == left
    assert_same(made, expected)


@given(data=st.data(), shape=st.lists(st.integers(0, 4), max_size=3), transposed=st.booleans())
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex32, torch.float32], ids=str)
def test_layouts_are_the_hosts(dtype: torch.dtype, data: Any, shape: list[int], transposed: bool) -> None:
    """What stands for bfloat16 is laid out as float32 is."""
    x = torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    mask = torch.tensor(
        data.draw(st.lists(st.booleans(), min_size=x.numel(), max_size=x.numel())), dtype=torch.bool
    )
    mask = mask.reshape(shape)
    if transposed and x.ndim > 1:
        x, mask = x.transpose(0, -1), mask.transpose(0, -1)
    expected = [x[mask], x.masked_select(mask), x.nonzero()]
    with flroute.enable("reference", fallback="error", default_device=False):
        there, where = x.to("fl"), mask.to("fl")
        made = [there[where], there.masked_select(where), there.nonzero()]
    assert_same(made, expected)


def test_negative_zeros_are_zeros() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.complex32):
        x = torch.tensor([-0.0, 1.0, 0.0]).to(dtype)
        with flroute.enable("reference", fallback="error", default_device=False):
            assert x.to("fl").nonzero().tolist() == [[1]]


@pytest.mark.parametrize("dtype", UNSIGNED[1:], ids=str)
def test_large_unsigned_numbers_are_in_order(dtype: torch.dtype) -> None:
    most = torch.iinfo(dtype).max
    x = torch.tensor([most, 0, most // 2 + 1, 5, most, most // 2], dtype=dtype)
    with flroute.enable("reference", fallback="error", default_device=False):
        assert_same(torch.unique(x.to("fl")), torch.unique(x))
        assert_same(tuple(torch.sort(x.to("fl"), stable=True)), tuple(torch.sort(x, stable=True)))


def test_uint16_is_not_taken_for_bfloat16() -> None:
    """Both come to numpy as uint16; where dtypes promote, only one of them is meant."""
    x = torch.tensor([1, 2, 3], dtype=torch.uint16)
    for case in (lambda x: x * 2, lambda x: x == 2, lambda x: torch.where(x == 2, x, 0), lambda x: x + 0.5):
        expected = outcome(case, x)
        with flroute.enable("reference", fallback="allow", default_device=False):
            made = outcome(case, x.to("fl"))
        assert_same(made, expected)


vendors = pytest.fixture(throw_away_vendors)


def test_a_result_that_may_stand_for_either_of_two_inputs_is_left_to_the_host(vendors: Vendors) -> None:
    """bfloat16 and uint16 come to a kernel as the same bits; which of them the bits it returns stand for is not to be guessed."""
    library = torch.library.Library("data_dependent_shapes", "FRAGMENT")
    library.define("positive(Tensor x, Tensor y) -> Tensor")  # PyTorch has no shape rule for it
    library.impl("positive", lambda x, y: x[y.bool()], "CPU")
    both = ("uint16", "bfloat16", "float32")
    kernel = Kernel(
        "data_dependent_shapes::positive",
        lambda x, y: x[y != 0],
        dtypes=tuple(getattr(torch, name) for name in both),
        mixed=True,
    )
    made = vendors(kernel)
    positive = torch.ops.data_dependent_shapes.positive
    number = torch.tensor([1.5, 2.5], dtype=torch.bfloat16)
    for other, fallbacks in ((torch.float32, 0), (torch.bfloat16, 0), (torch.uint16, 1)):
        mask = torch.tensor([0, 1]).to(other)
        with flroute.enable(made.name, fallback="allow", default_device=False) as session:
            result = positive(made.put(number), made.put(mask))
        assert len(session.fallbacks) == fallbacks
        assert_same(result, positive(number, mask))
    assert "before it is computed" in session.fallbacks[0].detail
