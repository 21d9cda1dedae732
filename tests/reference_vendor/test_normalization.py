from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from against_host import FLOATS, agree, assert_close, given, run, values
from hypothesis import strategies as st
from torch import nn

import flroute

MASKS = st.lists(st.booleans(), min_size=3, max_size=3)


@given(
    data=st.data(), dtype=st.sampled_from(FLOATS), inner=st.integers(1, 3), affine=st.booleans(), mask=MASKS
)
def test_layer_norm(data: Any, dtype: torch.dtype, inner: int, affine: bool, mask: list[bool]) -> None:
    x = data.draw(values((2, 3, 4), dtype)) + torch.randn(2, 3, 4, dtype=dtype)
    shape = list(x.shape[-inner:])
    weight, bias = (
        (torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)) if affine else (None, None)
    )
    agree("aten::native_layer_norm", x, shape, weight, bias, 1e-5)
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, shape, weight, bias, 1e-5)
    mask = mask if affine else [mask[0], False, False]
    agree("aten::native_layer_norm_backward", torch.randn_like(x), x, shape, mean, rstd, weight, bias, mask)


@given(data=st.data(), dtype=st.sampled_from(FLOATS), training=st.booleans(), affine=st.booleans(),
       tracked=st.booleans(), mask=MASKS,
       shape=st.sampled_from([(5, 3), (2, 3, 4), (2, 3, 2, 3), (1, 2, 2, 2, 2)]))  # fmt: skip
def test_batch_norm(
    data: Any,
    dtype: torch.dtype,
    training: bool,
    affine: bool,
    tracked: bool,
    mask: list[bool],
    shape: tuple[int, ...],
) -> None:
    x = data.draw(values(shape, dtype)) + torch.randn(shape, dtype=dtype)
    channels = shape[1]
    weight, bias = torch.randn(channels, dtype=dtype), torch.randn(channels, dtype=dtype)
    if not affine:
        weight, bias, mask = None, None, [mask[0], False, False]  # type: ignore[assignment]
    running = [torch.randn(channels, dtype=dtype), torch.rand(channels, dtype=dtype) + 0.5]
    ours, theirs, exact = ([t.clone() for t in running] for _ in range(3))
    if training and not tracked:
        ours = theirs = exact = [None, None]  # type: ignore[list-item]
    else:
        exact = [t.double() for t in exact]
    rest = (training, 0.1, 1e-5)
    made = run("aten::native_batch_norm", x, weight, bias, *ours, *rest)
    host = torch.ops.aten.native_batch_norm(x, weight, bias, *theirs, *rest)
    wide = [None if t is None else t.double() for t in (x, weight, bias)]
    for answer, expected, truth in zip(
        made, host, torch.ops.aten.native_batch_norm(*wide, *exact, *rest), strict=True
    ):
        assert_close(answer, expected, truth, 10)
    if ours[0] is not None:
        for answer, expected, truth in zip(ours, theirs, exact, strict=True):
            assert_close(answer.numpy(), expected, truth)
    gradient = torch.randn_like(x)
    agree(
        "aten::native_batch_norm_backward",
        gradient,
        x,
        weight,
        *theirs,
        host[1],
        host[2],
        training,
        1e-5,
        mask,
    )


def test_batch_norm_under_its_newer_names() -> None:
    x, mean, var = torch.randn(4, 3), torch.zeros(3), torch.ones(3)
    made = run("aten::_native_batch_norm_legit", x, None, None, mean, var, True, 0.1, 1e-5)
    expected = torch.nn.functional.batch_norm(x, None, None, training=True)
    torch.testing.assert_close(torch.from_numpy(made[0]), expected)
    torch.testing.assert_close(mean, 0.1 * x.mean(0))
    torch.testing.assert_close(var, 0.9 + 0.1 * x.var(0))
    agree("aten::_native_batch_norm_legit.no_stats", x, None, None, True, 0.1, 1e-5)


def test_a_nan_spoils_only_its_own_row() -> None:
    x = torch.randn(3, 4)
    x[1, 2] = float("nan")
    agree("aten::native_layer_norm", x, [4], None, None, 1e-5)


@given(data=st.data(), dtype=st.sampled_from(FLOATS), groups=st.sampled_from([1, 2, 3]), affine=st.booleans(), mask=MASKS,
       shape=st.sampled_from([(2, 6), (1, 6, 4), (2, 6, 2, 3), (1, 6, 2, 1, 2)]))  # fmt: skip
def test_group_norm(
    data: Any, dtype: torch.dtype, groups: int, affine: bool, mask: list[bool], shape: tuple[int, ...]
) -> None:
    # Spread, for what two nearly equal elements are divided by is ill-conditioned.
    spread = torch.linspace(-9, 9, math.prod(shape), dtype=dtype).reshape(shape)
    x = data.draw(values(shape, dtype)).contiguous() / 8 + spread
    sizes = (shape[0], 6, x.numel() // shape[0] // 6, groups)
    weight, bias = torch.randn(6, dtype=dtype), torch.randn(6, dtype=dtype)
    if not affine:
        weight, bias, mask = None, None, [mask[0], False, False]  # type: ignore[assignment]
    agree("aten::native_group_norm", x, weight, bias, *sizes, 1e-5)
    _, mean, rstd = torch.ops.aten.native_group_norm(x, weight, bias, *sizes, 1e-5)
    agree("aten::native_group_norm_backward", torch.randn_like(x), x, mean, rstd, weight, *sizes, mask)


def test_batch_norm_with_update() -> None:
    x, weight, bias = torch.randn(4, 3, 2), torch.randn(3), torch.randn(3)
    ours, theirs = ([torch.zeros(3), torch.ones(3)] for _ in range(2))
    made = run("aten::_batch_norm_with_update", x, weight, bias, *ours, 0.1, 1e-5)
    host = torch.ops.aten._batch_norm_with_update(x, weight, bias, *theirs, 0.1, 1e-5)
    for answer, expected in zip([*map(torch.from_numpy, made), *ours], [*host, *theirs], strict=True):
        torch.testing.assert_close(answer, expected)
    agree("aten::batch_norm_backward", torch.randn_like(x), x, weight, *theirs, host[1], host[2], True, 1e-5,
          [True] * 3, host[3])  # fmt: skip


def test_an_empty_batch() -> None:
    x, weight = torch.ones(0, 4, 3), torch.ones(3)
    agree("aten::native_layer_norm", x, [3], weight, None, 1e-5)
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, [3], weight, None, 1e-5)
    agree("aten::native_layer_norm_backward", x, x, [3], mean, rstd, weight, weight, [True] * 3)
    agree("aten::native_group_norm", x, None, None, 0, 4, 3, 2, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_running_statistics_in_half_precision(dtype: torch.dtype) -> None:
    x, host = torch.randn(4, 3, 5) + 1, nn.BatchNorm1d(3)
    there = copy.deepcopy(host).to("fl:0", dtype)
    with flroute.enable(device="reference", fallback="error"):
        there(x.to("fl:0", dtype))
    host(x)
    torch.testing.assert_close(there.running_mean.cpu().float(), host.running_mean, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(there.running_var.cpu().float(), host.running_var, rtol=1e-2, atol=1e-2)
