from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import FLOATS, SHAPES, agree, given, values
from hypothesis import strategies as st

FORWARD: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("aten::relu", (), {}),
    ("aten::leaky_relu", (0.2,), {}),
    ("aten::hardtanh", (-1, 1), {}),
    ("aten::tanh", (), {}),
    ("aten::sigmoid", (), {}),
    ("aten::silu", (), {}),
    ("aten::elu", (1.5, 1, 1), {}),
    ("aten::softplus", (2, 5), {}),
    ("aten::gelu", (), {"approximate": "none"}),
    ("aten::gelu", (), {"approximate": "tanh"}),
]
BACKWARD: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("aten::threshold_backward", (0,), {}),
    ("aten::leaky_relu_backward", (0.2, False), {}),
    ("aten::hardtanh_backward", (-1, 1), {}),
    ("aten::silu_backward", (), {}),
    ("aten::softplus_backward", (2, 5), {}),
    ("aten::gelu_backward", (), {"approximate": "none"}),
    ("aten::gelu_backward", (), {"approximate": "tanh"}),
]


@pytest.mark.parametrize(("op", "rest", "named"), FORWARD)
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_forward(
    op: str, rest: tuple[Any, ...], named: dict[str, Any], data: Any, dtype: torch.dtype
) -> None:
    agree(op, data.draw(values(data.draw(SHAPES), dtype)), *rest, **named)


@pytest.mark.parametrize(("op", "rest", "named"), FORWARD)
def test_forward_of_extremes(op: str, rest: tuple[Any, ...], named: dict[str, Any]) -> None:
    agree(op, torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, 200.0, -200.0]), *rest, **named)


@pytest.mark.parametrize(("op", "rest", "named"), BACKWARD)
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_backward(
    op: str, rest: tuple[Any, ...], named: dict[str, Any], data: Any, dtype: torch.dtype
) -> None:
    shape = data.draw(SHAPES)
    agree(op, data.draw(values(shape, dtype)), data.draw(values(shape, dtype)), *rest, **named)


@pytest.mark.parametrize("op", ["aten::sigmoid_backward", "aten::tanh_backward"])
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_backward_from_the_output(op: str, data: Any, dtype: torch.dtype) -> None:
    shape = data.draw(SHAPES)
    agree(op, data.draw(values(shape, dtype)), data.draw(values(shape, dtype)).tanh())


@pytest.mark.parametrize("op", ["aten::threshold_backward", "aten::hardtanh_backward"])
def test_a_nan_input_lets_the_gradient_through(op: str) -> None:
    x = torch.tensor([float("nan"), 1.0, -1.0, 0.0, float("inf")])
    agree(op, torch.full((5,), 2.0), x, *((0,) if "threshold" in op else (-1, 1)))
