from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import FLOATS, agree, given, run, values
from hypothesis import strategies as st
from torch import nn

import flroute
from flroute.vendor import Unsupported

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(
    tuple
)  # on no elements the host's process dies


@given(data=st.data(), dtype=st.sampled_from(FLOATS), shape=SHAPES, last=st.booleans())
def test_agrees_with_the_host(data: Any, dtype: torch.dtype, shape: tuple[int, ...], last: bool) -> None:
    dim = len(shape) - 1 if last else 0
    v, grad = (data.draw(values(shape, dtype)).contiguous() for _ in range(2))
    g = data.draw(values(tuple(n if d == dim else 1 for d, n in enumerate(shape)), dtype)).contiguous()
    if data.draw(st.booleans()):
        v[0] = 0
    agree("aten::_weight_norm_interface", v, g, dim)
    _, norms = torch.ops.aten._weight_norm_interface(v, g, dim)
    agree("aten::_weight_norm_interface_backward", grad, v, g, norms, dim)


def test_nothing_has_a_norm_of_zero() -> None:
    w, norms = run("aten::_weight_norm_interface", torch.ones(2, 0), torch.ones(2, 1), 0)
    assert w.shape == (2, 0)
    assert norms.tolist() == [[0], [0]]


def test_other_dimensions_are_refused() -> None:
    with pytest.raises(Unsupported):
        run("aten::_weight_norm_interface", torch.ones(2, 3, 4), torch.ones(1, 3, 1), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_module_with_weight_norm_trains_without_fallback(dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    host = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 6, 3), dim=dim).to(dtype)
    device = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 6, 3), dim=dim).to(dtype)
    device.load_state_dict(host.state_dict())
    x = torch.randn(2, 4, 8, dtype=dtype)
    host(x).square().sum().backward()
    with flroute.enable(device="reference", fallback="error", default_device=False):
        device.to("fl")(x.to("fl")).square().sum().backward()
    tolerance = {torch.bfloat16: 0.05, torch.float16: 5e-3}.get(dtype, 1e-5)
    for ours, theirs in zip(device.parameters(), host.parameters(), strict=True):
        assert ours.grad is not None
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=tolerance, atol=tolerance * 10)
