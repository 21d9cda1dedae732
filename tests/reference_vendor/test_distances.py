from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import FLOATS, agree, given, run, values
from hypothesis import strategies as st

import flroute
from flroute.vendor import Unsupported

ORDERS = st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")])


@given(data=st.data(), dtype=st.sampled_from(FLOATS), p=ORDERS, batch=st.sampled_from([(), (2,), (0,)]))
def test_between_two_sets(data: Any, dtype: torch.dtype, p: float, batch: tuple[int, ...]) -> None:
    sizes = data.draw(st.tuples(*[st.integers(0, 4)] * 3))
    x = data.draw(values((*batch, sizes[0], sizes[2]), dtype))
    y = data.draw(values((*batch, sizes[1], sizes[2]), dtype))
    agree("aten::_cdist_forward", x, y, p, None)
    if x.numel() and y.numel():
        distance = torch.cdist(x, y, p)
        agree("aten::_cdist_backward", data.draw(values(distance.shape, dtype)).contiguous(),
              x.contiguous(), y.contiguous(), p, distance)  # fmt: skip


@given(data=st.data(), dtype=st.sampled_from(FLOATS), p=ORDERS, count=st.integers(1, 5))
def test_within_one_set(data: Any, dtype: torch.dtype, p: float, count: int) -> None:
    x = data.draw(values((count, 3), dtype)).contiguous()
    distance = torch.nn.functional.pdist(x, p)
    agree("aten::_pdist_forward", x, p)
    agree("aten::_pdist_backward", torch.ones_like(distance), x, p, distance)


def test_equal_points_are_no_distance_apart_and_have_no_gradient() -> None:
    x = torch.ones(3, 4)
    for p in (0.0, 0.5, 1.0, 2.0, 3.0, float("inf")):
        distance = torch.zeros(3, 3)
        agree("aten::_cdist_forward", x, x, p, None)
        agree("aten::_cdist_backward", torch.ones(3, 3), x, x, p, distance)


def test_the_gradient_for_no_batches_has_the_shape_of_the_points() -> None:
    empty = torch.zeros(0, 3, 2)
    agree("aten::_cdist_backward", empty, torch.ones(3, 5), torch.ones(0, 2, 5), 2.0, empty)


def test_many_points_go_in_blocks() -> None:
    x, y = torch.randn(300, 20), torch.randn(200, 20)
    agree("aten::_cdist_forward", x, y, 2.0, 2)
    agree("aten::_cdist_backward", torch.ones(300, 200), x, y, 2.0, torch.cdist(x, y))


def test_points_of_different_dimensions_are_left_to_the_host() -> None:
    with pytest.raises(Unsupported):
        run("aten::_cdist_forward", torch.ones(2, 3), torch.ones(2, 4), 2.0, None)


def test_backward_without_a_fallback() -> None:
    x, y = torch.randn(2, 4, 3), torch.randn(5, 3)

    def gradients(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        (torch.cdist(x, y).sum() + torch.nn.functional.pdist(y).sum()).backward()
        return [t.grad.cpu() for t in (x, y) if t.grad is not None]

    expected = gradients(x.clone().requires_grad_(), y.clone().requires_grad_())
    with flroute.enable(device="reference", fallback="error"):
        made = gradients(x.to("fl").requires_grad_(), y.to("fl").requires_grad_())
    torch.testing.assert_close(made, expected)
