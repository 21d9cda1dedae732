"""New tensors: what the host makes of the same arguments, without the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import flroute

LIKE: dict[str, Callable[..., torch.Tensor]] = {
    "zeros": torch.zeros_like,
    "ones": torch.ones_like,
    "full": lambda x, **asked: torch.full_like(x, 3, **asked),
    "full of a flag": lambda x, **asked: torch.full_like(x, True, **asked),
}
ASKED: list[dict[str, Any]] = [
    {}, {"dtype": torch.int64}, {"dtype": torch.complex64}, {"dtype": torch.bool}, {"dtype": torch.bfloat16},
    {"memory_format": torch.channels_last},
]  # fmt: skip
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "permuted": lambda x: x.permute(3, 2, 0, 1),
    "empty": lambda x: x[:, :0],
    "of integers": torch.Tensor.int,
}


@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", LIKE)
def test_like_another(name: str, layout: str, asked: dict[str, Any]) -> None:
    host = LAYOUTS[layout](torch.randn(2, 3, 4, 4))
    with flroute.enable("reference", fallback="error", default_device=False):
        for _ in range(3):
            made, expected = LIKE[name](host.to("fl"), **asked), LIKE[name](host, **asked)
            assert (made.device.type, made.dtype, made.stride()) == ("fl", expected.dtype, expected.stride())
            assert torch.equal(made.cpu(), expected)


@pytest.mark.parametrize("name", LIKE)
def test_like_another_elsewhere(name: str) -> None:
    x = torch.randn(2, 3).to("fl:0")
    with flroute.enable("reference", fallback="error", default_device=False):
        assert LIKE[name](x, device="cpu").device == torch.device("cpu")
        assert LIKE[name](x, device="fl:1").device == torch.device("fl:1")


RANGES = [(5,), (2, 9), (0, 10, 3), (10, 0, -3), (0, 1, 0.1), (0.5, 4), (-3.5, 2, 0.25), (5, 5), (0, -1, -0.3),
          (1, 2**40, 2**38)]  # fmt: skip


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [
        (numbers, dtype)
        for numbers in RANGES
        for dtype in (None, torch.float32, torch.float64, torch.int64)
        if dtype is not torch.int64 or all(isinstance(number, int) for number in numbers)
    ],
    ids=str,
)
def test_arange(numbers: tuple[Any, ...], dtype: torch.dtype | None) -> None:
    expected = torch.arange(*numbers, dtype=dtype)
    with flroute.enable("reference", fallback="error"):
        made = torch.arange(*numbers, dtype=dtype)
        out = torch.arange(*numbers, out=torch.empty(0, dtype=expected.dtype))
    for answer in (made, out):
        assert answer.device.type == "fl"
        torch.testing.assert_close(answer.cpu(), expected, rtol=1e-7, atol=0)


@pytest.mark.parametrize("dtype", [None, torch.float64], ids=str)
@pytest.mark.parametrize("numbers", [(0, 1, 5), (0, 1, 1), (3, -2, 7), (0, 1, 0), (0.1, 0.9, 100)], ids=str)
def test_linspace(numbers: tuple[Any, ...], dtype: torch.dtype | None) -> None:
    expected = torch.linspace(*numbers, dtype=dtype)
    with flroute.enable("reference", fallback="error"):
        made = torch.linspace(*numbers, dtype=dtype)
    torch.testing.assert_close(made.cpu(), expected, rtol=2e-7, atol=2e-7)
    assert expected.numel() < 2 or made[-1].item() == expected[-1].item()


@pytest.mark.parametrize("dtype", [None, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("sizes", [(3,), (2, 4), (4, 2), (0, 3)], ids=str)
def test_eye(sizes: tuple[int, ...], dtype: torch.dtype | None) -> None:
    with flroute.enable("reference", fallback="error"):
        made = torch.eye(*sizes, dtype=dtype)
        out = torch.eye(*sizes, out=torch.empty(0, dtype=made.dtype))
    for answer in (made, out):
        assert torch.equal(answer.cpu(), torch.eye(*sizes, dtype=dtype))


@pytest.mark.parametrize("wrong", [(0, 1, 0), (0, 1, -1), (0, float("inf"))], ids=str)
def test_impossible_ranges_are_refused_as_on_the_host(wrong: tuple[Any, ...]) -> None:
    with pytest.raises((RuntimeError, ValueError)) as host:
        torch.arange(*wrong)
    with flroute.enable("reference", fallback="allow"), pytest.raises(type(host.value)) as ours:
        torch.arange(*wrong)
    assert str(host.value) in str(ours.value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_that_of_the_host(dtype: torch.dtype) -> None:
    with flroute.enable("reference", fallback="allow"):
        made = [torch.arange(5, dtype=dtype), torch.linspace(0, 1, 5, dtype=dtype), torch.eye(3, dtype=dtype)]
    expected = [torch.arange(5, dtype=dtype), torch.linspace(0, 1, 5, dtype=dtype), torch.eye(3, dtype=dtype)]
    for answer, host in zip(made, expected, strict=True):
        assert answer.dtype is dtype
        assert torch.equal(answer.cpu(), host)


@pytest.mark.parametrize("shape", [(), (0, 2), (2, 3)])
def test_zeros_that_stand_for_a_gradient(shape: tuple[int, ...]) -> None:
    with flroute.enable("reference", fallback="error", default_device=False):
        made = torch._efficientzerotensor(shape, dtype=torch.float64, device="fl") + 1
    assert torch.equal(made.cpu(), torch.ones(shape, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.float16])
@pytest.mark.parametrize("steps", [0, 1, 2, 7])
@pytest.mark.parametrize("base", [10.0, 2.0])
def test_logspace(steps: int, base: float, dtype: torch.dtype | None) -> None:
    with flroute.enable("reference", fallback="error", default_device=False):
        made = torch.logspace(-1, 2, steps, base, dtype=dtype, device="fl")
    torch.testing.assert_close(made.cpu(), torch.logspace(-1, 2, steps, base, dtype=dtype))


@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
@pytest.mark.parametrize(("start", "end", "step"), [(0, 4, 1), (1, 2.5, 0.5), (4, -1, -2), (0, 1, 0.3)])
def test_closed_range(start: float, end: float, step: float) -> None:
    with flroute.enable("reference", fallback="error", default_device=False):
        made = torch.range(start, end, step, device="fl")
    torch.testing.assert_close(made.cpu(), torch.range(start, end, step))


@pytest.mark.parametrize("make", [torch.tril_indices, torch.triu_indices])
@pytest.mark.parametrize(
    ("rows", "columns", "offset"), [(3, 3, 0), (4, 2, 1), (2, 5, -1), (0, 3, 0), (3, 4, 9), (3, 4, -9)]
)
def test_triangles(make: Callable[..., torch.Tensor], rows: int, columns: int, offset: int) -> None:
    for dtype in (torch.int64, torch.int32):
        with flroute.enable("reference", fallback="error", default_device=False):
            made = make(rows, columns, offset, dtype=dtype, device="fl")
        expected = make(rows, columns, offset, dtype=dtype)
        assert (made.dtype, made.stride()) == (expected.dtype, expected.stride())
        assert torch.equal(made.cpu(), expected)
