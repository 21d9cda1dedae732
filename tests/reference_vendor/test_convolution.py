from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import FLOATS, LAYOUTS, agree, given, laid_out, run
from hypothesis import strategies as st

from flroute.vendor import Unsupported


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of a convolution that fit together."""
    spatial = draw(st.integers(1, 3))

    def each(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=spatial, max_size=spatial))

    groups, transposed = draw(st.sampled_from([1, 1, 2, 3])), draw(st.booleans())
    inputs, outputs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    stride, dilation = each(1, 3), each(1, 2)
    kernel, padding = each(1, 3), each(0, 2)
    image = [max(d * (k - 1) + 1, 3) + draw(st.integers(0, 3)) for d, k in zip(dilation, kernel, strict=True)]
    output_padding = [
        draw(st.integers(0, max(s, d) - 1)) if transposed else 0
        for s, d in zip(stride, dilation, strict=True)
    ]
    if transposed:  # the host refuses an output padding that leaves no output
        padding = [min(p, (d * (k - 1)) // 2) for p, d, k in zip(padding, dilation, kernel, strict=True)]
    dtype, layout = draw(st.sampled_from(FLOATS)), draw(LAYOUTS)
    torch.manual_seed(draw(st.integers(0, 1000)))
    shape = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
    return {
        "x": laid_out(torch.randn(draw(st.integers(1, 3)), inputs, *image, dtype=dtype), layout),
        "weight": laid_out(torch.randn(*shape, *kernel, dtype=dtype), layout),
        "bias": torch.randn(outputs, dtype=dtype) if draw(st.booleans()) else None,
        "rest": (stride, padding, dilation, transposed, output_padding, groups),
    }


@given(case=convolutions(), mask=st.lists(st.booleans(), min_size=3, max_size=3))
def test_forward_and_backward(case: dict[str, Any], mask: list[bool]) -> None:
    agree("aten::convolution", case["x"], case["weight"], case["bias"], *case["rest"])
    output = torch.ops.aten.convolution(case["x"], case["weight"], case["bias"], *case["rest"])
    gradient = torch.randn(output.shape, dtype=output.dtype)
    mask[1] |= mask[2]  # asked for the bias alone, the host gives the weight's gradient too
    sizes = [output.shape[1]] if mask[2] else None
    agree("aten::convolution_backward", gradient, case["x"], case["weight"], sizes, *case["rest"], mask)


def test_one_number_serves_all_dimensions() -> None:
    agree(
        "aten::convolution",
        torch.randn(2, 3, 6, 5),
        torch.randn(4, 3, 3, 3),
        None,
        [2],
        [1],
        [1],
        False,
        [0],
        1,
    )


@pytest.mark.parametrize("transposed", [False, True])
def test_an_empty_batch(transposed: bool) -> None:
    x, weight, rest = (
        torch.ones(0, 4, 5, 6),
        torch.ones(4, 2, 3, 3),
        ([2, 2], [1, 1], [1, 1], transposed, [0, 0], 2),
    )
    agree("aten::convolution", x, weight, torch.ones(4), *rest)
    gradient = torch.ones_like(torch.ops.aten.convolution(x, weight, None, *rest))
    agree("aten::convolution_backward", gradient, x, weight, [4], *rest, [True, True, True])


def test_channels_last() -> None:
    x = torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last)
    weight = torch.randn(6, 4, 3, 3).to(memory_format=torch.channels_last)
    agree("aten::convolution", x, weight, torch.randn(6), [1, 1], [1, 1], [1, 1], False, [0, 0], 1)


def test_nan_stays_where_its_window_reaches() -> None:
    x = torch.randn(1, 1, 8)
    x[0, 0, 2] = float("nan")
    agree("aten::convolution", x, torch.randn(1, 1, 3), None, [1], [1], [1], False, [0], 1)


@pytest.mark.parametrize(
    ("x", "weight", "bias"),
    [((1, 3, 8, 8), (4, 2, 3, 3), None), ((1, 3, 2, 2), (4, 3, 3, 3), None), ((1, 3, 8, 8), (4, 3, 3, 3), (5,)),
     ((1, 0, 8, 8), (4, 0, 3, 3), None), ((1, 3, 8), (4, 3, 3, 3), None)],
)  # fmt: skip
def test_what_does_not_fit_is_left_to_the_host(x: Any, weight: Any, bias: Any) -> None:
    with pytest.raises(Unsupported):
        run("aten::convolution", torch.ones(x), torch.ones(weight), None if bias is None else torch.ones(bias),
            [1], [0], [1], False, [0], 1)  # fmt: skip


@pytest.mark.parametrize("transposed", [False, True])
def test_a_gradient_of_another_shape_is_left_to_the_host(transposed: bool) -> None:
    x, weight = torch.ones(1, 2, 5), torch.ones(2, 2, 3)
    for shape in ((1, 2, 50) if not transposed else (1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2)):
        with pytest.raises(Unsupported):
            run(
                "aten::convolution_backward",
                torch.ones(shape),
                x,
                weight,
                [2],
                [1],
                [0],
                [1],
                transposed,
                [0],
                1,
                [True] * 3,
            )
