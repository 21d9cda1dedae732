"""The built-in table: elementwise ops, products, rows, layers and gradients, at sizes from dispatch-bound to memory-bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from flroute.benchmark.timing import Work


class Case(NamedTuple):
    """``make(*inputs)`` gives the work to time; the inputs are made on the host and moved to the device.

    ``samples`` is how many of them a model takes in one call.
    """

    name: str
    inputs: Callable[[], tuple[Any, ...]]
    make: Callable[..., Work]
    samples: int | None = None


def forward(function: Callable[..., Any], *inputs: Any) -> Work:
    """Call ``function``; no input wants a gradient."""
    return lambda: function(*inputs)


def backward(function: Callable[..., torch.Tensor], *inputs: Any) -> Work:
    """The gradients of ``function`` for all its floating inputs, from a graph that is kept."""
    leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
    with torch.enable_grad():
        result = function(*leaves)
    wanted = [x for x in leaves if x.requires_grad]
    upstream = torch.ones_like(result)
    return lambda: torch.autograd.grad(result, wanted, upstream, retain_graph=True)


def _case(
    name: str,
    function: Callable[..., Any],
    *shapes: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    then: Callable[..., Work] = forward,
    also: Callable[[], tuple[Any, ...]] = tuple,
) -> Case:
    """A case on normal numbers of the given shapes, and other inputs after them."""

    def inputs() -> tuple[Any, ...]:
        torch.manual_seed(0)
        return (*(torch.randn(shape).to(dtype) for shape in shapes), *also())

    return Case(name, inputs, partial(then, function))


def _where(x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, x, y)


UNARY: dict[str, Callable[..., Any]] = {
    "relu": torch.relu, "gelu": functional.gelu, "silu": functional.silu, "sigmoid": torch.sigmoid, "tanh": torch.tanh,
    "exp": torch.exp, "rsqrt": torch.rsqrt, "pow": lambda x: x.pow(3.5), "sum": torch.sum, "mean": torch.mean,
    "max": torch.max, "argmax": torch.argmax, "clone": torch.clone, "cumsum": lambda x: x.cumsum(0),
    "sort": torch.sort,
}  # fmt: skip
BINARY: dict[str, Callable[..., Any]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "eq": torch.eq,
}  # fmt: skip
ROWWISE: dict[str, Callable[..., Any]] = {
    "softmax": lambda x: x.softmax(-1), "log_softmax": lambda x: x.log_softmax(-1),
    "sum of rows": lambda x: x.sum(-1), "sum of columns": lambda x: x.sum(0), "var": lambda x: x.var(-1),
    "transpose copy": lambda x: x.t().contiguous(),
}  # fmt: skip


def _elementwise() -> Iterator[Case]:
    for label, size in (("1e3", 1000), ("1e6", 1_000_000)):
        for name, function in UNARY.items():
            yield _case(f"{name} {label}", function, (size,))
        for name, function in BINARY.items():
            yield _case(f"{name} {label}", function, (size,), (size,))
        mask = partial(lambda n: (torch.rand(n) < 0.5,), size)
        yield _case(f"where {label}", _where, (size,), (size,), also=mask)


def _products() -> Iterator[Case]:
    for label, rows, inner in (("32", 32, 32), ("256", 256, 256), ("1024", 1024, 1024), ("1x1024", 1, 1024)):
        yield _case(f"mm {label}", torch.mm, (rows, inner), (inner, inner))
        yield _case(f"addmm {label}", torch.addmm, (inner,), (rows, inner), (inner, inner))
        yield _case(f"bmm {label}", torch.bmm, (2, rows, inner), (2, inner, inner))


def _rows() -> Iterator[Case]:
    for rows, width in ((8, 64), (1024, 1024)):
        label, shape = f"{rows}x{width}", (rows, width)
        for name, function in ROWWISE.items():
            yield _case(f"{name} {label}", function, shape)
        norm = partial(functional.layer_norm, normalized_shape=(width,))
        yield _case(
            f"layer_norm {label}", lambda x, w, b, f=norm: f(x, weight=w, bias=b), shape, (width,), (width,)
        )
        rms = partial(functional.rms_norm, normalized_shape=(width,))
        yield _case(f"rms_norm {label}", lambda x, w, f=rms: f(x, weight=w), shape, (width,))
        target = partial(lambda n, classes: (torch.randint(classes, (n,)),), rows, width)
        yield _case(f"cross_entropy {label}", functional.cross_entropy, shape, also=target)
        yield _case(f"cat {label}", lambda x, y: torch.cat([x, y]), shape, shape)
        mask = partial(lambda s: (torch.rand(s) < 0.5,), shape)
        yield _case(f"masked_fill {label}", lambda x, m: x.masked_fill(m, -1e9), shape, also=mask)


def _embed(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return functional.embedding(index, table)


def _batch_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.batch_norm(x, None, None, weight, bias, training=True)


CONVOLVE = partial(functional.conv2d, padding=1)
HEADS = (1, 8, 512, 64)
IMAGES = (4, 64, 56, 56)


def _layers() -> Iterator[Case]:
    tokens = partial(torch.randint, 1000, (512,))
    yield _case("embedding", _embed, (1000, 256), also=lambda: (tokens(),))
    yield _case("embedding backward", _embed, (1000, 256), also=lambda: (tokens(),), then=backward)
    attend = functional.scaled_dot_product_attention
    yield _case("sdpa 1x8x512x64", attend, HEADS, HEADS, HEADS)
    yield _case("sdpa backward 1x8x512x64", attend, HEADS, HEADS, HEADS, then=backward)
    yield _case("conv2d 1x3x16", CONVOLVE, (1, 3, 16, 16), (8, 3, 3, 3))
    yield _case("conv2d 4x64x56", CONVOLVE, IMAGES, (64, 64, 3, 3))
    yield _case("conv2d backward 4x64x56", CONVOLVE, IMAGES, (64, 64, 3, 3), then=backward)
    yield _case("max_pool2d 4x64x56", lambda x: functional.max_pool2d(x, 2), IMAGES)
    yield _case("batch_norm 4x64x56", _batch_norm, IMAGES, (64,), (64,))


def _gradients() -> Iterator[Case]:
    yield _case("gelu backward 1e6", functional.gelu, (1_000_000,), then=backward)
    yield _case("softmax backward 1024x1024", lambda x: x.softmax(-1), (1024, 1024), then=backward)
    yield _case(
        "layer_norm backward 1024x1024",
        lambda x, w, b: functional.layer_norm(x, (1024,), w, b),
        (1024, 1024),
        (1024,),
        (1024,),
        then=backward,
    )


def _other_dtypes() -> Iterator[Case]:
    size, square = (1_000_000,), (256, 256)
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        label = str(dtype).removeprefix("torch.")
        yield _case(f"add {label} 1e6", torch.add, size, size, dtype=dtype)
        yield _case(f"gelu {label} 1e6", functional.gelu, size, dtype=dtype)
        yield _case(f"sum {label} 1e6", torch.sum, size, dtype=dtype)
        yield _case(f"softmax {label} 1024x1024", lambda x: x.softmax(-1), (1024, 1024), dtype=dtype)
        yield _case(f"mm {label} 256", torch.mm, square, square, dtype=dtype)


def cases() -> list[Case]:
    """Every case."""
    groups = (_elementwise, _products, _rows, _layers, _gradients, _other_dtypes)
    return [case for group in groups for case in group()]
