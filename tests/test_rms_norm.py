"""RMS normalization: one op with one gradient on every vendor, and PyTorch's composite where that cannot be."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import rms_norm
from torch.testing import assert_close

import flroute

CASES = [((4, 64), (64,), True), ((2, 3, 8), (3, 8), True), ((5, 7), (7,), False), ((6,), (6,), True)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
FUSED = {"aten::_fused_rms_norm", "aten::_fused_rms_norm_backward"}


def outcome(
    device: str, x: torch.Tensor, weight: torch.Tensor | None, shape: tuple[int, ...]
) -> list[torch.Tensor]:
    """The result, and the gradients of its arguments."""
    ours = x.to(device, copy=True).requires_grad_()
    inputs = [ours] if weight is None else [ours, weight.to(device, copy=True).requires_grad_()]
    output = rms_norm(ours, shape, *inputs[1:])
    cotangent = torch.linspace(0.5, 1.5, output.numel()).reshape(output.shape).to(output)
    return [output, *torch.autograd.grad(output, inputs, cotangent)]


@pytest.mark.parametrize("vendor", ["reference", "opaque"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "normalized", "weighed"), CASES, ids=str)
def test_the_hosts_results(
    shape: tuple[int, ...], normalized: tuple[int, ...], weighed: bool, dtype: torch.dtype, vendor: str
) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=dtype)
    weight = torch.rand(normalized, dtype=dtype) + 0.5 if weighed else None
    with flroute.enable(vendor, fallback="allow", default_device=False) as session:
        found = outcome(str(flroute.device(vendor)), x, weight, normalized)
    for got, wanted in zip(found, outcome("cpu", x, weight, normalized), strict=True):
        assert (got.dtype, got.shape, got.stride()) == (wanted.dtype, wanted.shape, wanted.stride())
        assert_close(got.cpu(), wanted)
    assert {d.op for d in session.decisions} >= FUSED


def test_second_gradients_are_the_hosts() -> None:
    x, weight = torch.randn(5, 64, dtype=torch.float64), torch.rand(64, dtype=torch.float64)

    def second(device: str) -> tuple[torch.Tensor, ...]:
        inputs = [x.to(device, copy=True).requires_grad_(), weight.to(device, copy=True).requires_grad_()]
        first = torch.autograd.grad(
            rms_norm(inputs[0], (64,), inputs[1]).sin().sum(), inputs, create_graph=True
        )
        return torch.autograd.grad(sum((g * g).sum() for g in first), inputs)

    for got, wanted in zip(second("fl"), second("cpu"), strict=True):
        assert_close(got.cpu(), wanted)


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (torch.randn(3, 8).bfloat16(), torch.rand(8)),
        (torch.randn(8, 3).t(), torch.rand(8)),
        (torch.randn(0, 8), torch.rand(8)),
        (torch.randn(2, 8, 3, 3).to(memory_format=torch.channels_last), None),
    ],
    ids=["mixed dtypes", "strided", "empty", "channels last"],
)
def test_what_is_not_one_block_of_one_dtype(x: torch.Tensor, weight: torch.Tensor | None) -> None:
    with flroute.enable("reference", fallback="error", default_device=False):
        found = outcome("fl", x, weight, tuple(x.shape[1:]))
    for got, wanted in zip(found, outcome("cpu", x, weight, tuple(x.shape[1:])), strict=True):
        assert (got.dtype, got.stride()) == (wanted.dtype, wanted.stride())
        assert_close(got.cpu(), wanted)


@pytest.mark.parametrize("vendor", ["reference", "opaque"])
@pytest.mark.parametrize("weighed", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_result_is_row_major_whatever_the_input(dtype: torch.dtype, weighed: bool, vendor: str) -> None:
    x, weight = torch.randn(4, 5, 16, dtype=dtype), torch.rand(16, dtype=dtype) if weighed else None
    with flroute.enable(vendor, fallback="allow", default_device=False):
        device = str(flroute.device(vendor))
        ours = rms_norm(x.to(device).transpose(0, 1), (16,), None if weight is None else weight.to(device))
    host = rms_norm(x.transpose(0, 1), (16,), weight)
    assert ours.stride() == host.stride()
    assert_close(ours.cpu(), host)


def test_a_wrong_shape_is_refused_as_on_the_host() -> None:
    with pytest.raises(RuntimeError) as host:
        rms_norm(torch.randn(3, 8), (7,))
    with pytest.raises(RuntimeError) as ours:
        rms_norm(torch.randn(3, 8, device="fl"), (7,))
    assert str(ours.value) == str(host.value)
