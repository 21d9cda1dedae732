"""Large results come from the pool: the same numbers, strides and errors as small ones, and counted like them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import flroute
from flroute.reference_vendor.memory import LARGE, MEMORY

DEVICE = flroute.device("reference:0")
N = LARGE // 4  # elements of float32 that are just enough


def _pair(shape: tuple[int, ...], other: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator), torch.randn(other, generator=generator)


CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add": lambda x, y: x + y,
    "add a number": lambda x, y: x + 2,
    "add with alpha": lambda x, y: torch.add(x, y, alpha=3),
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "mul from the left": lambda x, y: 3.5 * x,
    "div": lambda x, y: x / y,
    "exp": lambda x, y: x.exp(),
    "sqrt": lambda x, y: x.abs().sqrt(),
    "gelu": lambda x, y: torch.nn.functional.gelu(x),
    "a number without a dimension": lambda x, y: x * y.flatten()[0],
    "where": lambda x, y: torch.where(x > 0, x, y),
    "where between": lambda x, y: torch.where(y > 0, x, -x),
    "masked_fill": lambda x, y: x.masked_fill(x > 1, 7.0),
    "leaky relu": lambda x, y: torch.nn.functional.leaky_relu(x),
    "cat": lambda x, y: torch.cat([x.view(-1), y.reshape(-1)]),
    "cat of the last": lambda x, y: torch.cat([x, x], -1),
    "full_like": lambda x, y: torch.full_like(x, 3),
    "in place": lambda x, y: x.clone().mul_(y),
    "foreach": lambda x, y: torch._foreach_mul([x, y], 2)[0],
}


@pytest.mark.parametrize(
    ("shape", "other"),
    [
        ((N,), (N,)),
        ((2, N // 2), (N // 2,)),
        ((256, N // 256), (256, 1)),
        ((N, 1), (1, 3)),
        ((1, N), (3, 1)),
        ((N,), (2, N)),
        ((N,), ()),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", CALLS)
def test_as_on_the_host(name: str, shape: tuple[int, ...], other: tuple[int, ...]) -> None:
    call, (x, y) = CALLS[name], _pair(shape, other)
    if name == "in place" and torch.broadcast_shapes(shape, other) != shape:
        with pytest.raises(RuntimeError, match="shape"), flroute.enable(DEVICE, fallback="error"):
            call(x.to(DEVICE), y.to(DEVICE))
        return
    expected = call(x, y)
    with flroute.enable(DEVICE, fallback="error", default_device=False):
        for _ in range(2):  # the general path, then the hot one
            made = call(x.to(DEVICE), y.to(DEVICE))
    torch.testing.assert_close(made.cpu(), expected)
    assert made.stride() == expected.stride()


@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x.t(),
        lambda x: x[:, ::2],
        lambda x: x[:1].expand(x.shape),
        lambda x: x.view(4, 4, -1, 16).contiguous(memory_format=torch.channels_last),
    ],
    ids=["transposed", "every second", "expanded", "channels_last"],
)
@pytest.mark.parametrize(
    "name",
    [
        "add",
        "add a number",
        "mul",
        "exp",
        "sqrt",
        "gelu",
        "in place",
        "foreach",
        "where",
        "masked_fill",
        "cat of the last",
    ],
)
def test_layouts(name: str, layout: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x, _ = _pair((512, 1024), ())
    call, x = CALLS[name], layout(x)
    expected = call(x, x)
    with flroute.enable(DEVICE, fallback="error", default_device=False):
        for _ in range(2):
            on_device = layout(_pair((512, 1024), ())[0].to(DEVICE))
            made = call(on_device, on_device)
    torch.testing.assert_close(made.cpu(), expected)
    assert made.stride() == expected.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.complex64])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_matrices(transposed: bool, dtype: torch.dtype) -> None:
    x = torch.arange(-400 * 300, 400 * 300)[: 400 * 300].view(400, 300).remainder(7).to(dtype)
    y = x.t() if transposed else x.t().contiguous()
    with flroute.enable(DEVICE, fallback="error", default_device=False):
        on_device = x.to(DEVICE)
        other = on_device.t() if transposed else on_device.t().contiguous()
        assert torch.equal((on_device @ other).cpu(), x @ y)
        assert torch.equal(torch.bmm(on_device[None], other[None]).cpu(), torch.bmm(x[None], y[None]))
        assert torch.equal(torch.addmm(on_device[:, :1], on_device, other).cpu(), torch.addmm(x[:, :1], x, y))


def test_the_gradient_of_relu() -> None:
    x, grad = _pair((N,), (N,))
    with flroute.enable(DEVICE, fallback="error", default_device=False):
        for on in (x, x.to(DEVICE)):
            leaf = on.detach().requires_grad_()
            torch.relu(leaf).backward(grad.to(on.device))
            assert leaf.grad is not None
            assert torch.equal(leaf.grad.cpu(), grad * (x > 0))


def test_a_scalar_that_changes_the_dtype() -> None:
    x = torch.ones(N)
    with flroute.enable(DEVICE, fallback="allow", default_device=False):
        for other in (2j, True, 3, 1e300):
            made, expected = x.to(DEVICE) * other, x * other
            assert made.dtype == expected.dtype
            assert torch.equal(made.cpu(), expected)


def test_they_are_in_the_pool_and_counted() -> None:
    pool = MEMORY.pool(0)
    x, y = (t.to(DEVICE) for t in _pair((N,), (N,)))
    allocated, used = torch.fl.memory_allocated(DEVICE), pool.stats().used
    with flroute.enable(DEVICE, fallback="error", default_device=False):
        for _ in range(2):
            made = x + y
            assert torch.fl.memory_allocated(DEVICE) == allocated + LARGE
            assert pool.stats().used == used + LARGE
            del made
            assert torch.fl.memory_allocated(DEVICE) == allocated
            assert pool.stats().used == used
