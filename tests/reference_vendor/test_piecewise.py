from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import FLOATS, SHAPES, agree, given, run, values
from hypothesis import strategies as st

FORWARD: list[tuple[str, tuple[Any, ...]]] = [
    ("aten::hardshrink", (0.7,)),
    ("aten::softshrink", (0.7,)),
    ("aten::hardsigmoid", ()),
    ("aten::hardswish", ()),
]
BACKWARD: list[tuple[str, tuple[Any, ...]]] = [
    ("aten::hardshrink_backward", (0.7,)),
    ("aten::softshrink_backward", (0.7,)),
    ("aten::hardswish_backward", ()),
]
EDGES = torch.tensor(
    [0.0, -0.0, 0.7, -0.7, 0.5, -0.5, 3, -3, 4, -4, float("inf"), -float("inf"), float("nan")]
)


@pytest.mark.parametrize(("op", "rest"), FORWARD)
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_forward(op: str, rest: tuple[Any, ...], data: st.DataObject, dtype: torch.dtype) -> None:
    agree(op, data.draw(values(data.draw(SHAPES), dtype, special=True)), *rest)


@pytest.mark.parametrize(("op", "rest"), BACKWARD)
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_backward(op: str, rest: tuple[Any, ...], data: st.DataObject, dtype: torch.dtype) -> None:
    shape = data.draw(SHAPES)
    agree(op, data.draw(values(shape, dtype)), data.draw(values(shape, dtype)), *rest)


@pytest.mark.parametrize(("op", "rest"), FORWARD + BACKWARD)
def test_edges(op: str, rest: tuple[Any, ...]) -> None:
    for dtype in FLOATS:
        gradient = (torch.full(EDGES.shape, 2.0, dtype=dtype),) if "backward" in op else ()
        agree(op, *gradient, EDGES.to(dtype), *rest)


def test_hardsigmoid_backward() -> None:
    """In float32 only: in float64 the host itself multiplies by a float32 sixth."""
    agree("aten::hardsigmoid_backward", torch.linspace(-2, 2, 13), EDGES)
    made = run(
        "aten::hardsigmoid_backward", torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    )
    assert made[0] == 1 / 6


@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_prelu(data: st.DataObject, dtype: torch.dtype) -> None:
    x, weight = data.draw(values((3, 4, 2), dtype, special=True)), data.draw(values((1, 4, 1), dtype))
    agree("aten::_prelu_kernel", x, weight)
    agree("aten::_prelu_kernel_backward", data.draw(values((3, 4, 2), dtype)), x, weight)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("training", [True, False])
def test_rrelu_draws_the_hosts_slopes(dtype: torch.dtype, training: bool) -> None:
    x = torch.randn(30, 40, dtype=dtype).t()
    host, noise = torch.Generator().manual_seed(3), torch.zeros(40, 30, dtype=dtype)
    expected = torch.ops.aten.rrelu_with_noise(x, noise, 0.1, 0.4, training, host)
    ours, filled = torch.Generator().manual_seed(3), torch.zeros_like(x)
    made = run("aten::rrelu_with_noise", x, filled, 0.1, 0.4, training, ours)
    torch.testing.assert_close(torch.from_numpy(made), expected)
    torch.testing.assert_close(filled, noise, rtol=0, atol=0)
    assert torch.equal(host.get_state(), ours.get_state())
    written = x.clone()
    run("aten::rrelu_with_noise_", written, filled, 0.1, 0.4, training, ours.manual_seed(3))
    torch.testing.assert_close(written, expected)
