from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import FLOATS, agree, given, run, values
from hypothesis import strategies as st

from flroute.vendor import Unsupported

REDUCTIONS = st.sampled_from([0, 1, 2])


@given(data=st.data(), dtype=st.sampled_from(FLOATS), reduction=REDUCTIONS, weighted=st.booleans(),
       ignore=st.sampled_from([-100, 0, 2]), image=st.booleans())  # fmt: skip
def test_nll(data: Any, dtype: torch.dtype, reduction: int, weighted: bool, ignore: int, image: bool) -> None:
    batch = data.draw(st.sampled_from([(4,), (1,)] if image else [(4,), (1,), ()]))
    extra = (2, 3) if image else ()
    x = data.draw(values((*batch, 3, *extra), dtype))
    x = x.contiguous() if image else x  # the host's own backward asks for it
    target = torch.randint(0, 3, (*batch, *extra))
    weight = torch.rand(3, dtype=dtype) + 0.1 if weighted else None
    name = "nll_loss2d" if image else "nll_loss"
    loss, total = getattr(torch.ops.aten, f"{name}_forward")(x, target, weight, reduction, ignore)
    made = run(f"aten::{name}_forward", x, target, weight, reduction, ignore)
    assert made[1].shape == total.shape
    if reduction == 0 and batch:  # the host leaves the total weight of unreduced losses undefined
        torch.testing.assert_close(torch.from_numpy(made[0].copy()), loss)
    else:
        agree(f"aten::{name}_forward", x, target, weight, reduction, ignore)
    gradient = torch.randn(loss.shape, dtype=dtype)
    agree(f"aten::{name}_backward", gradient, x, target, weight, reduction, ignore, total)


def test_a_target_out_of_range_is_the_callers_error() -> None:
    with pytest.raises(IndexError, match="Target 3 is out of bounds"):
        run("aten::nll_loss_forward", torch.ones(2, 3), torch.tensor([0, 3]), None, 1, -100)


def test_targets_that_do_not_fit_are_left_to_the_host() -> None:
    for target in (torch.tensor([0]), torch.tensor([0.0, 1.0]), torch.tensor([0, 1], dtype=torch.uint8)):
        with pytest.raises(Unsupported):
            run("aten::nll_loss_forward", torch.ones(2, 3), target, None, 1, -100)


@given(data=st.data(), dtype=st.sampled_from(FLOATS), reduction=REDUCTIONS)
def test_mse(data: Any, dtype: torch.dtype, reduction: int) -> None:
    x, y = data.draw(values((3, 4), dtype)), data.draw(values((3, 4), dtype))
    agree("aten::mse_loss", x, y, reduction)
    gradient = data.draw(values((3, 4) if reduction == 0 else (), dtype))
    agree("aten::mse_loss_backward", gradient, x, y, reduction)


@given(data=st.data(), dtype=st.sampled_from(FLOATS), reduction=REDUCTIONS, weighted=st.booleans())
def test_binary_cross_entropy(data: Any, dtype: torch.dtype, reduction: int, weighted: bool) -> None:
    x, target = torch.rand(3, 4, dtype=dtype), torch.rand(3, 4, dtype=dtype)
    x[0, 0], x[1, 1] = 0, 1
    weight = torch.rand(3, 4, dtype=dtype) if weighted else None
    agree("aten::binary_cross_entropy", x, target, weight, reduction)
    gradient = data.draw(values((3, 4) if reduction == 0 else (), dtype))
    agree("aten::binary_cross_entropy_backward", gradient, x.clamp(0.01, 0.99), target, weight, reduction)


@pytest.mark.parametrize(("name", "knee"), [("huber_loss", 1.0), ("huber_loss", 0.3), ("smooth_l1_loss", 1.0),
                                            ("smooth_l1_loss", 0.3), ("smooth_l1_loss", 0.0)])  # fmt: skip
@given(data=st.data(), dtype=st.sampled_from(FLOATS), reduction=REDUCTIONS)
def test_square_then_straight(name: str, knee: float, data: Any, dtype: torch.dtype, reduction: int) -> None:
    x, target = data.draw(values((3, 4), dtype)), data.draw(values((3, 4), dtype))
    agree(f"aten::{name}", x, target, reduction, knee)
    gradient = data.draw(values((3, 4) if reduction == 0 else (), dtype))
    agree(f"aten::{name}_backward", gradient, x, target, reduction, knee)
