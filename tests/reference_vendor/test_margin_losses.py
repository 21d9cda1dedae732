from __future__ import annotations

import pytest
import torch
from against_host import FLOATS, agree, given, run, values
from hypothesis import strategies as st

from flroute.vendor import Unsupported

REDUCTIONS = st.sampled_from([0, 1, 2])


@given(data=st.data(), dtype=st.sampled_from(FLOATS), reduction=REDUCTIONS, p=st.sampled_from([1, 2]),
       batch=st.sampled_from([(4,), (1,), ()]), weighted=st.booleans())  # fmt: skip
def test_one_right_class(
    data: st.DataObject, dtype: torch.dtype, reduction: int, p: int, batch: tuple[int, ...], weighted: bool
) -> None:
    x = data.draw(values((*batch, 5), dtype))
    target = torch.randint(0, 5, batch, generator=torch.Generator().manual_seed(reduction))
    weight = torch.rand(5, dtype=dtype) if weighted else None
    agree("aten::multi_margin_loss", x, target, p, 0.7, weight, reduction)
    gradient = data.draw(values(batch if reduction == 0 else (), dtype))
    agree("aten::multi_margin_loss_backward", gradient, x, target, p, 0.7, weight, reduction)


@given(data=st.data(), dtype=st.sampled_from(FLOATS), reduction=REDUCTIONS,
       batch=st.sampled_from([(4,), (1,), ()]))  # fmt: skip
def test_several_right_classes(
    data: st.DataObject, dtype: torch.dtype, reduction: int, batch: tuple[int, ...]
) -> None:
    x = data.draw(values((*batch, 5), dtype))
    rows = torch.tensor([[0, 3, -1, 1, 2], [-1, 0, 1, 2, 3], [4, 4, 1, -1, -1], [0, 1, 2, 3, 4]])
    target = rows[: batch[0]] if batch else rows[data.draw(st.integers(0, 3))]
    agree("aten::multilabel_margin_loss_forward", x, target, reduction)
    _, is_target = torch.ops.aten.multilabel_margin_loss_forward(x, target, reduction)
    gradient = data.draw(values(batch if reduction == 0 else (), dtype))
    agree("aten::multilabel_margin_loss_backward", gradient, x, target, reduction, is_target)


def test_targets_out_of_range_are_left_to_the_host() -> None:
    x = torch.randn(2, 3)
    with pytest.raises(Unsupported):
        run("aten::multi_margin_loss", x, torch.tensor([0, 3]))
    with pytest.raises(Unsupported):
        run("aten::multilabel_margin_loss_forward", x, torch.tensor([[0, 3, -1], [0, -1, -1]]), 1)
