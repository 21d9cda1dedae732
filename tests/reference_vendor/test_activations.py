from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import FLOATS, SHAPES, agree, given, run, values
from hypothesis import strategies as st

from flroute.vendor import Unsupported

FORWARD: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("aten::relu", (), {}),
    ("aten::leaky_relu", (0.2,), {}),
    ("aten::hardtanh", (-1, 1), {}),
    ("aten::tanh", (), {}),
    ("aten::sigmoid", (), {}),
    ("aten::silu", (), {}),
    ("aten::elu", (1.5, 1, 1), {}),
    ("aten::softplus", (2, 5), {}),
    ("aten::log_sigmoid_forward", (), {}),
    ("aten::mish", (), {}),
    ("aten::gelu", (), {"approximate": "none"}),
    ("aten::gelu", (), {"approximate": "tanh"}),
]
BACKWARD: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("aten::threshold_backward", (0,), {}),
    ("aten::leaky_relu_backward", (0.2, False), {}),
    ("aten::hardtanh_backward", (-1, 1), {}),
    ("aten::silu_backward", (), {}),
    ("aten::softplus_backward", (2, 5), {}),
    ("aten::mish_backward", (), {}),
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


@given(data=st.data(), dtype=st.sampled_from(FLOATS), is_result=st.booleans())
def test_elu_backward(data: Any, dtype: torch.dtype, is_result: bool) -> None:
    shape = data.draw(SHAPES)
    x = data.draw(values(shape, dtype))
    x = torch.ops.aten.elu(x, 1.5, 2, 0.5) if is_result else x
    agree("aten::elu_backward", data.draw(values(shape, dtype)), 1.5, 2, 0.5, is_result, x)


@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_log_sigmoid_backward(data: Any, dtype: torch.dtype) -> None:
    shape = data.draw(SHAPES)
    x = data.draw(values(shape, dtype))
    _, buffer = torch.ops.aten.log_sigmoid_forward(x)
    agree("aten::log_sigmoid_backward", data.draw(values(shape, dtype)), x, buffer)


@pytest.mark.parametrize("dim", [0, 1, -1])
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_glu(dim: int, data: Any, dtype: torch.dtype) -> None:
    x, tangent = data.draw(values((4, 2, 6), dtype)), data.draw(values((4, 2, 6), dtype))
    agree("aten::glu", x, dim)
    output = torch.ops.aten.glu(x, dim)
    agree("aten::glu_backward", data.draw(values(tuple(output.shape), dtype)), x, dim)
    agree("aten::glu_jvp", output, x, tangent, dim)


def test_halves_of_an_odd_dimension_are_left_to_the_host() -> None:
    with pytest.raises(Unsupported):
        run("aten::glu", torch.randn(3, 4), 0)


@pytest.mark.parametrize("op", ["aten::mish_backward", "aten::silu_backward", "aten::elu_backward"])
def test_gradients_at_the_ends(op: str) -> None:
    x = torch.tensor([0.0, -0.0, 90.0, -90.0, 1e30, -200.0, float("nan")])
    rest = (1.5, 1, 1, False) if "elu_" in op and "silu" not in op else ()
    agree(op, torch.ones(7), *rest, x)
