"""Over many elements, no kernel is further from the truth than twice PyTorch's own error on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from against_host import mapped, overload, run

Arguments = Callable[[], tuple[Any, ...]]


def normal(*shape: int, scale: float = 1) -> torch.Tensor:
    return (
        torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)
        .mul_(scale)
        .float()
    )


def positive(*shape: int) -> torch.Tensor:
    return normal(*shape, scale=3).exp()


N = 20_000
CASES: dict[str, tuple[str, Arguments]] = {
    "add with alpha": ("aten::add.Tensor", lambda: (normal(N), normal(N, 1)[:, 0])),
    "exp": ("aten::exp", lambda: (normal(N, scale=20),)),
    "log": ("aten::log", lambda: (positive(N),)),
    "log near one": ("aten::log", lambda: (1 + normal(N, scale=0.1).clamp(-0.5, 0.5),)),
    "log1p": ("aten::log1p", lambda: (positive(N),)),
    "expm1": ("aten::expm1", lambda: (normal(N),)),
    "sin": ("aten::sin", lambda: (normal(N, scale=10),)),
    "rsqrt": ("aten::rsqrt", lambda: (positive(N),)),
    "pow": ("aten::pow.Tensor_Scalar", lambda: (positive(N), 1.7)),
    "lerp": ("aten::lerp.Scalar", lambda: (normal(N), normal(N, 1)[:, 0], 0.1)),
    "addcmul": ("aten::addcmul", lambda: (normal(N), normal(N, 1)[:, 0], normal(N, 2)[:, 0])),
    "addcdiv": ("aten::addcdiv", lambda: (normal(N), normal(N, 1)[:, 0], positive(N))),
    "tanh": ("aten::tanh", lambda: (normal(N, scale=2),)),
    "tanh backward": ("aten::tanh_backward", lambda: (normal(N), normal(N, 1)[:, 0].tanh())),
    "sigmoid": ("aten::sigmoid", lambda: (normal(N, scale=4),)),
    "silu": ("aten::silu", lambda: (normal(N, scale=4),)),
    "silu backward": ("aten::silu_backward", lambda: (normal(N), normal(N, 1, scale=4)[:, 0])),
    "gelu": ("aten::gelu", lambda: (normal(N, scale=2),)),
    "gelu backward": ("aten::gelu_backward", lambda: (normal(N), normal(N, 1, scale=2)[:, 0])),
    "gelu backward by tanh": ("aten::gelu_backward", lambda: (normal(N), normal(N, 1, scale=2)[:, 0])),
    "gelu by tanh": ("aten::gelu", lambda: (normal(N, scale=2),)),
    "gelu of small numbers": ("aten::gelu", lambda: (normal(N, scale=0.02),)),
    "mish": ("aten::mish", lambda: (normal(N, scale=3),)),
    "mish backward": ("aten::mish_backward", lambda: (normal(N), normal(N, 1, scale=3)[:, 0])),
    "log sigmoid": ("aten::log_sigmoid_forward", lambda: (normal(N, scale=3),)),
    "glu": ("aten::glu", lambda: (normal(2 * N, scale=2),)),
    "erf": ("aten::erf", lambda: (normal(N),)),
    "erfinv": ("aten::erfinv", lambda: (normal(N).tanh(),)),
    "log2": ("aten::log2", lambda: (positive(N),)),
    "exp2": ("aten::exp2", lambda: (normal(N, scale=10),)),
    "atan2": ("aten::atan2", lambda: (normal(N), normal(N, 1)[:, 0])),
    "lgamma": ("aten::lgamma", lambda: (positive(N).clamp(max=30),)),
    "digamma": ("aten::digamma", lambda: (positive(N).clamp(max=30),)),
    "i0e": ("aten::special_i0e", lambda: (normal(N, scale=10),)),
    "smooth l1": ("aten::smooth_l1_loss", lambda: (normal(N), normal(N, 1)[:, 0])),
    "sum": ("aten::sum", lambda: (normal(N) + 1,)),
    "sum of columns": ("aten::sum.dim_IntList", lambda: (normal(5000, 8) + 1, [0])),
    "sum of rows": ("aten::sum.dim_IntList", lambda: (normal(8, 5000) + 1, [1])),
    "sum per channel": ("aten::sum.dim_IntList", lambda: (normal(32, 4, 16, 16) + 1, [0, 2, 3])),
    "mean": ("aten::mean", lambda: (normal(N) + 100,)),
    "variance": ("aten::var.correction", lambda: (normal(500, 20) + 10, [0])),
    "mm": ("aten::mm", lambda: (normal(64, 1000), normal(1000, 64))),
    "mm of long sums": ("aten::mm", lambda: (normal(8, 20_000), normal(20_000, 8))),
    "addmm": ("aten::addmm", lambda: (normal(64), normal(64, 256), normal(256, 64))),
    "mv": ("aten::mv", lambda: (normal(64, 1000), normal(1000))),
    "dot": ("aten::dot", lambda: (normal(N), normal(N) + 1)),
    "bmm": ("aten::bmm", lambda: (normal(4, 32, 200), normal(4, 200, 32))),
    "softmax": ("aten::_softmax", lambda: (normal(50, 400, scale=3), 1, False)),
    "log_softmax": ("aten::_log_softmax", lambda: (normal(50, 400, scale=3), 1, False)),
    "layer norm": (
        "aten::native_layer_norm",
        lambda: (normal(50, 400) + 3, [400], normal(400), normal(400), 1e-5),
    ),
    "batch norm": (
        "aten::native_batch_norm",
        lambda: (normal(32, 8, 8, 8) + 5, normal(8), normal(8), None, None, True, 0.1, 1e-5),
    ),
    "batch norm backward": (
        "aten::native_batch_norm_backward",
        lambda: (
            normal(32, 8, 8, 8),
            normal(32, 8, 8, 9)[..., 1:],
            normal(8),
            None,
            None,
            normal(8) / 50,
            positive(8),
            True,
            1e-5,
            [True] * 3,
        ),
    ),
    "layer norm backward": (
        "aten::native_layer_norm_backward",
        lambda: (
            normal(50, 400),
            normal(50, 401)[:, 1:],
            [400],
            normal(50, 1) / 20,
            1 + normal(50, 1) / 20,
            normal(400),
            normal(400),
            [True] * 3,
        ),
    ),
    "convolution": (
        "aten::convolution",
        lambda: (normal(4, 16, 16, 16), normal(32, 16, 3, 3), normal(32), *PLAIN),
    ),
    "convolution backward": (
        "aten::convolution_backward",
        lambda: (
            normal(16, 32, 16, 16),
            normal(16, 16, 16, 16),
            normal(32, 16, 3, 3),
            [32],
            *PLAIN,
            [True] * 3,
        ),
    ),
    "average pool": ("aten::avg_pool2d", lambda: (normal(4, 8, 28, 28), [7, 7])),
    "mse": ("aten::mse_loss", lambda: (normal(N), normal(N, 1)[:, 0])),
}
NAMED: dict[str, dict[str, Any]] = {
    "add with alpha": {"alpha": -0.3},
    "gelu by tanh": {"approximate": "tanh"},
    "gelu backward by tanh": {"approximate": "tanh"},
}
PLAIN = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)


@pytest.mark.parametrize("name", CASES)
def test_no_less_accurate_than_twice_the_host(name: str) -> None:
    op, make = CASES[name]
    args = make()
    named = NAMED.get(name, {})
    truth = overload(op)(*mapped(torch.Tensor.double, args), **named)
    host = overload(op)(*args, **named)
    made = run(op, *args, **named)
    if not isinstance(made, tuple):
        truth, host, made = (truth,), (host,), (made,)
    for exact, theirs, ours in zip(truth, host, made, strict=True):
        reference, scale = exact.numpy(), np.abs(exact.numpy()).max()
        half_unit = np.spacing(np.float32(scale)) / 2  # a correctly rounded result is off by that much
        worst = np.abs(ours - reference).max()
        assert worst <= max(2 * np.abs(theirs.numpy() - reference).max(), 1.0001 * half_unit)
        # Errors relative to each element, where no cancellation makes them meaningless.
        mean = np.mean(np.abs(ours - reference))
        assert mean <= 2 * np.mean(np.abs(theirs.numpy() - reference)) + 0.3 * half_unit * (
            reference.size < 2
        )


@pytest.mark.parametrize("shape", [(5000, 3), (3, 5000), (70, 80, 3), (3, 70, 80)])
def test_double_sums_do_not_add_up_one_by_one(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 1
    for dims in ([0], [0, 1]):
        exact = np.sum(x.numpy().astype(np.longdouble), axis=tuple(dims))
        ours = np.abs(run("aten::sum.dim_IntList", x, dims) - exact).max()
        theirs = np.abs(x.sum(dims).numpy() - exact).max()
        assert ours <= max(2 * theirs, np.spacing(np.float64(np.abs(exact).max())))
