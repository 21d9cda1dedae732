from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import FLOATS, given, run, values
from hypothesis import strategies as st

import flroute
from flroute.vendor import Unsupported

REDUCTIONS = ["sum", "mean", "prod", "max", "min"]


@st.composite
def segmented(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Data, some of it equal, 0 or NaN, and lengths along a dimension, some of them 0."""
    axis, dtype = draw(st.integers(0, 1)), draw(st.sampled_from(FLOATS))
    lengths = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    x = draw(values((*(3,) * axis, sum(lengths), 2), dtype)).contiguous().clone()
    if x.numel() and draw(st.booleans()):
        x = x.round()
        x[(0,) * x.ndim] = draw(st.sampled_from([float("nan"), 0.0, float("inf")]))
    rows = torch.tensor(lengths, dtype=draw(st.sampled_from([torch.int64, torch.int32])))
    return x, torch.stack([rows, rows.flip(0), rows]) if axis else rows, axis


@pytest.mark.parametrize("reduce", REDUCTIONS)
@given(case=segmented(), initial=st.sampled_from([None, 2.0, 0.0]), by_offsets=st.booleans())
def test_segments(
    reduce: str, case: tuple[torch.Tensor, torch.Tensor, int], initial: float | None, by_offsets: bool
) -> None:
    x, lengths, axis = case
    given_as: dict[str, Any] = {"lengths": lengths}
    if by_offsets:
        zero = torch.zeros_like(lengths[..., :1])
        given_as = {"offsets": torch.cat([zero, lengths.cumsum(-1, dtype=lengths.dtype)], -1)}
    wanted = x.clone().requires_grad_()
    expected = torch.segment_reduce(wanted, reduce, **given_as, axis=axis, initial=initial)
    made = torch.from_numpy(run("aten::segment_reduce", x, reduce, **given_as, axis=axis, initial=initial))
    torch.testing.assert_close(made, expected.detach(), equal_nan=True)
    if not x.numel():
        return
    slope = torch.rand(
        expected.shape, dtype=x.dtype
    )  # the host shares negative ones out wrongly among equal extremes
    expected.backward(slope)
    gradient = run("aten::_segment_reduce_backward", slope, expected.detach(), x, reduce, **given_as, axis=axis,
                   initial=initial)  # fmt: skip
    torch.testing.assert_close(torch.from_numpy(gradient), wanted.grad, equal_nan=True)


def test_segments_need_not_cover_everything_when_nobody_checks() -> None:
    x, lengths = torch.arange(12.0).reshape(2, 6), torch.tensor([[1, 2], [3, 1]])
    with flroute.enable("reference", fallback="error", default_device=False):
        made = torch.segment_reduce(x.to("fl"), "sum", lengths=lengths.to("fl"), axis=1, unsafe=True)
    assert torch.equal(made.cpu(), torch.segment_reduce(x, "sum", lengths=lengths, axis=1, unsafe=True))


@pytest.mark.parametrize(
    "lengths", [torch.tensor([1, 1]), torch.tensor([-1, 4]), torch.tensor([4.0]), torch.tensor([[3]])]
)
def test_what_is_left_to_the_host(lengths: torch.Tensor) -> None:
    with pytest.raises(Unsupported):
        run("aten::segment_reduce", torch.ones(3), "sum", lengths=lengths)
