"""float16 and bfloat16 are computed in float32 and rounded once: no further from the truth than on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from against_host import given, mapped, overload
from hypothesis import strategies as st
from test_accuracy import CASES
from torch.nn import functional

import flroute
from flroute.reference_vendor.half_precision import HALVES, rounded_to, widened

CARRIERS = {torch.float16: np.dtype(np.float16), torch.bfloat16: np.dtype(np.uint16)}


def bits_of(tensor: torch.Tensor) -> Any:
    """What a kernel receives."""
    return tensor.view(torch.int16).numpy().view(CARRIERS[tensor.dtype])


@pytest.mark.parametrize("dtype", HALVES)
def test_every_number_is_widened_exactly(dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    wide = torch.from_numpy(widened(bits_of(every)))
    assert wide.dtype is torch.float32
    assert torch.equal(wide.isnan(), every.isnan())
    assert torch.equal(wide.nan_to_num(7), every.float().nan_to_num(7))


@pytest.mark.parametrize("dtype", HALVES)
@given(seed=st.integers(0, 2**31), strided=st.booleans())
def test_numbers_are_rounded_as_pytorch_rounds_them(dtype: torch.dtype, seed: int, strided: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-(2**31), 2**31, (4096,), generator=generator, dtype=torch.int64)
    x = x.to(torch.int32).view(torch.float32)  # any bits: denormals, infinities and NaN among them
    x = torch.cat([x, torch.randn(4096, generator=generator), torch.tensor([0.0, -0.0, 3.4e38, 65519.9])])
    x = x[::3] if strided else x
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(rounded_to(CARRIERS[dtype], x.numpy()))
    made, expected = torch.from_numpy(rounded.view(np.int16)).view(dtype), x.to(dtype)
    assert torch.equal(made.isnan(), expected.isnan())
    assert torch.equal(made.nan_to_num(7), expected.nan_to_num(7))
    assert torch.equal(made.signbit() | made.isnan(), expected.signbit() | expected.isnan())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", [name for name, (op, _) in CASES.items() if "nll" not in op])
def test_accuracy(name: str, dtype: torch.dtype) -> None:
    op, arguments = CASES[name]
    args = mapped(lambda t: t.to(dtype) if t.is_floating_point() else t, arguments())
    exact = overload(op)(*mapped(lambda t: t.double() if t.is_floating_point() else t, args))
    host = overload(op)(*args)
    with flroute.enable("reference", fallback="error", default_device=False):
        ours = mapped(torch.Tensor.cpu, overload(op)(*mapped(lambda t: t.to("fl"), args)))
    for got, theirs, truth in zip(*map(_as_list, (ours, host, exact)), strict=True):
        assert got.dtype == theirs.dtype
        assert _worst(got, truth) <= 2 * _worst(theirs, truth)


def _as_list(answer: Any) -> list[torch.Tensor]:
    return list(answer) if isinstance(answer, (list, tuple)) else [answer]


def _worst(values: torch.Tensor, truth: torch.Tensor) -> float:
    """The largest error in units of the truth, where that is not overflow for both."""
    counts = truth.abs() < torch.finfo(values.dtype).max / 2
    error = (values.double() - truth).abs() / truth.abs().clamp(min=1e-2)
    return float(error[counts].max()) if counts.any() else 0.0


WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "in place": lambda x, y: x.add_(y),
    "in place, strided": lambda x, y: x.t().mul_(y),
    "out": lambda x, y: torch.sub(y, x, out=x),
    "lists": lambda x, y: torch._foreach_mul_([x[0], x[1]], [y[1], y[0]]),
    "a list and a number": lambda x, _: torch._foreach_add_([x[0], x[1]], 0.1),
    "a wider result": lambda x, y: y.copy_(x.sum(0, dtype=torch.float32)[:, None]),
    "a result of its own dtype": lambda x, y: y.copy_(x.sum(0, dtype=x.dtype)),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", WRITES)
def test_writes_are_those_of_the_host(name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    host = [torch.randn(3, 3, generator=generator).to(dtype) for _ in range(2)]
    device = [t.to("fl") for t in host]
    with flroute.enable("reference", fallback="allow", default_device=False) as session:
        for _ in range(2):
            WRITES[name](*host)
            WRITES[name](*device)
            for a, b in zip(host, device, strict=True):
                assert torch.equal(a, b.cpu())
    assert {d.op for d in session.fallbacks} <= {"aten::copy_"}


MIXED: dict[str, Callable[[Any, Any], torch.Tensor]] = {
    name: getattr(torch, name)
    for name in ("add", "sub", "mul", "div", "maximum", "fmod", "remainder", "floor_divide", "atan2", "pow", "fmax", "copysign",
                 "eq", "ne", "lt", "le", "gt", "ge", "logical_and")
} | {
    "where": lambda x, y: torch.where(torch.tensor([True, False, True], device=x.device), x, y),
    "clamp": lambda x, y: torch.clamp(x, min=y, max=y + 1),
    "addcmul": lambda x, y: torch.addcmul(x, y, y, value=2),
    "in place": lambda x, y: x.clone().add_(y),
}  # fmt: skip
OTHERS: list[Any] = [
    *(torch.tensor([0.1, 1.0, 257.0]).to(dtype) for dtype in (*HALVES, torch.float32, torch.float64, torch.int64, torch.bool)),
    *(torch.tensor(257.1).to(dtype) for dtype in (*HALVES, torch.float32, torch.int64)),
    0.1, 3,
]  # fmt: skip


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", MIXED)
def test_operands_of_other_dtypes(name: str, dtype: torch.dtype) -> None:
    """The host's dtype and values, to a rounding; comparisons exactly: ``x == 0.1`` holds for the nearest number to 0.1."""
    x = torch.tensor([0.1, 2.0, 257.0]).to(dtype)
    for y in OTHERS:
        try:
            expected = MIXED[name](x, y)
        except (RuntimeError, TypeError):
            continue
        with flroute.enable("reference", fallback="error", default_device=False):
            made = MIXED[name](x.to("fl"), y.to("fl") if isinstance(y, torch.Tensor) else y)
        assert made.dtype is expected.dtype
        eps = torch.finfo(dtype).eps if expected.is_floating_point() else 0.0
        torch.testing.assert_close(
            made.cpu(), expected, rtol=eps, atol=0, equal_nan=True, msg=lambda m, y=y: f"{y}: {m}"
        )


ROWS = torch.tensor([1, 0, 2])
WITH_INDEX: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cross entropy": lambda x, i: torch.nn.functional.cross_entropy(x, i),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
    "bag of embeddings": lambda x, i: torch.nn.functional.embedding_bag(i[None], x),
    "pooling": lambda x, _: torch.nn.functional.max_pool2d(x[None], 2),
    "adaptive pooling": lambda x, _: torch.nn.functional.adaptive_max_pool2d(x[None], 2),
    "margin": lambda x, i: torch.nn.functional.multi_margin_loss(x.float(), i).to(x.dtype),
    "choice": lambda x, i: torch.where(i[:, None] > 0, x, 2 * x),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", WITH_INDEX)
def test_values_with_an_index(name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(3, 4, generator=generator).to(dtype)
    x, there = values.clone().requires_grad_(), values.to("fl").requires_grad_()
    expected = WITH_INDEX[name](x, ROWS)
    expected.float().square().sum().backward()
    with flroute.enable("reference", fallback="error", default_device=False):
        made = WITH_INDEX[name](there, ROWS.to("fl"))
        made.float().square().sum().backward()
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(made.cpu(), expected, rtol=2 * eps, atol=2 * eps)
    assert there.grad is not None
    torch.testing.assert_close(there.grad.cpu(), x.grad, rtol=4 * eps, atol=4 * eps)


def _places(size: int, count: int) -> torch.Tensor:
    return torch.arange(count) % size


WITH_INDICES_AND_OTHER_DTYPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nll": lambda x: functional.nll_loss(x.log_softmax(1), _places(6, 4).to(x.device)),
    "cross entropy": lambda x: functional.cross_entropy(x.reshape(1, 6, 4), _places(6, 4).reshape(1, 4).to(x.device)),
    "embedding": lambda x: functional.embedding(_places(4, 7).to(x.device), x),
    "embedding bag": lambda x: functional.embedding_bag(_places(4, 6).reshape(2, 3).to(x.device), x, mode="mean"),
    "max pool": lambda x: functional.max_pool2d(x.reshape(1, 1, 4, 6), 2),
    "adaptive max pool": lambda x: functional.adaptive_max_pool2d(x.reshape(1, 4, 6), (2, 3)),
    "where": lambda x: torch.where(x > 0, x, 2 * x),
    "masked": lambda x: x * (x > 0),
    "with integers": lambda x: x * _places(6, 6).to(x.device) - 1,
    "with float32": lambda x: x.float() + x * 2,
    "with a float64 number": lambda x: x / torch.tensor(3.0, dtype=torch.float64, device=x.device),
    "sort": lambda x: x.sort(1).values,
    "mode": lambda x: x.mode(1).values,
    "accumulate": lambda x: x.index_put((_places(4, 8).to(x.device),), x.repeat(2, 1), accumulate=True),
    "segments": lambda x: torch.segment_reduce(x, "sum", lengths=torch.tensor([1, 3], device=x.device)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", WITH_INDICES_AND_OTHER_DTYPES)
def test_with_indices_and_other_dtypes(name: str, dtype: torch.dtype) -> None:
    function = WITH_INDICES_AND_OTHER_DTYPES[name]
    start = torch.randn(4, 6, generator=torch.Generator().manual_seed(2)).to(dtype)
    results = []
    for device in ("cpu", "fl"):
        x = start.to(device, copy=True).requires_grad_()
        with flroute.enable(
            "reference", fallback="error" if name != "segments" else "allow", default_device=False
        ):
            made = function(x)
            (made * made).sum().backward()
        assert x.grad is not None
        results.append((made.detach().cpu(), x.grad.cpu()))
    for made, expected in zip(*reversed(results), strict=True):
        torch.testing.assert_close(made, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("carrier", [np.float16, np.uint16])
def test_widening_keeps_the_order_of_dimensions(carrier: type) -> None:
    x = np.arange(24).reshape(2, 3, 4).astype(carrier).transpose(2, 0, 1)
    wide = widened(x)
    assert wide.dtype == np.float32
    assert [step // 4 for step in wide.strides] == [step // 2 for step in x.strides]
