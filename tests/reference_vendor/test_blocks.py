"""Arrays long enough to go through kernels a block at a time: the same results as the host's, whatever is where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from against_host import agree, run

from flroute.reference_vendor.blocks import BLOCK
from flroute.reference_vendor.casting import from_float16, to_bfloat16

ODD = (float("nan"), float("inf"), -float("inf"), -0.0, 1e-45)


def normal(*shape: int, odd: bool = False) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    if odd:
        x.view(-1)[5 : 5 + len(ODD)] = torch.tensor(ODD)
    return x


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("op", ["relu", "tanh", "sigmoid", "silu", "gelu", "rsqrt", "exp", "clone"])
def test_elementwise(op: str, odd: bool) -> None:
    agree(f"aten::{op}", normal(BLOCK + 1234, odd=odd))
    agree(f"aten::{op}", normal(250, 260, odd=odd).t())


@pytest.mark.parametrize("exponent", [3, -0.5, 3.5, 1 / 3])
def test_powers(exponent: float) -> None:
    agree("aten::pow.Tensor_Scalar", normal(BLOCK + 5, odd=True), exponent)


@pytest.mark.parametrize("dims", [[0], [1], [2], [0, 1], [1, 2], [0, 2], [0, 1, 2]])
@pytest.mark.parametrize("shape", [(64, 96, 50), (3, 4099, 7), (4096, 3, 5), (2, 3, 5000)])
def test_sums(shape: tuple[int, ...], dims: list[int]) -> None:
    for keepdim in (False, True):
        agree("aten::sum.dim_IntList", normal(*shape) + 1, dims, keepdim)


def test_a_sum_whose_pieces_overflow() -> None:
    x = torch.zeros(10_000)
    x[:2], x[5000:5002] = 3e38, -3e38
    assert run("aten::sum", x) == 0
    agree("aten::sum", normal(10_000, odd=True))


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("op", ["_softmax", "_log_softmax"])
def test_softmax(op: str, dim: int) -> None:
    x = normal(300, 401)
    x[7, 3:] = -float("inf")
    agree(f"aten::{op}", x, dim, False)
    output = torch.softmax(x, dim) if op == "_softmax" else torch.log_softmax(normal(300, 401), dim)
    agree(f"aten::{op}_backward_data", normal(300, 401) + 1, output, dim, torch.float32)


@pytest.mark.parametrize("width", [100, 5000])
@pytest.mark.parametrize("weighted", [False, True])
def test_layer_norm(width: int, weighted: bool) -> None:
    x = normal(2 * BLOCK // width + 3, width) + 2
    weight, bias = (normal(width), normal(width) + 1) if weighted else (None, None)
    agree("aten::native_layer_norm", x, [width], weight, bias, 1e-5)
    _, mean, rstd = torch.native_layer_norm(x, [width], weight, bias, 1e-5)
    mask = [True, weighted, weighted]
    agree("aten::native_layer_norm_backward", normal(*x.shape), x, [width], mean, rstd, weight, bias, mask)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolution_of_large_images(stride: int, groups: int) -> None:
    x, weight = normal(2, 8, 70, 90), normal(12, 8 // groups, 3, 3)
    settings: tuple[Any, ...] = ([stride, stride], [1, 1], [1, 1], False, [0, 0], groups)
    agree("aten::convolution", x, weight, normal(12), *settings)
    gradient = torch.ops.aten.convolution(x, weight, None, *settings)
    agree("aten::convolution_backward", gradient, x, weight, [12], *settings, [True] * 3)


def test_every_float16_is_the_same_in_float32() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    halves = bits.view(np.float16)
    finite = np.isfinite(halves)
    assert np.array_equal(from_float16(halves), halves.astype(np.float32), equal_nan=True)
    made, known = from_float16(halves[finite]), halves[finite].astype(np.float32)
    assert np.array_equal(made.view(np.uint32), known.view(np.uint32))


def test_bfloat16_rounds_as_the_host_does() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 100_000, dtype=np.uint32)
    x = torch.from_numpy(bits.view(np.float32))
    made = torch.from_numpy(to_bfloat16(x.numpy()).view(np.int16)).view(torch.bfloat16)
    torch.testing.assert_close(made, x.bfloat16(), rtol=0, atol=0, equal_nan=True)
