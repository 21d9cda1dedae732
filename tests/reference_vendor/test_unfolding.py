from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import FLOATS, agree, given, run, values
from hypothesis import strategies as st

from flroute.vendor import Unsupported

PAIRS = st.lists(st.integers(1, 3), min_size=2, max_size=2)


@given(data=st.data(), dtype=st.sampled_from(FLOATS), batch=st.sampled_from([(), (2,)]), kernel=PAIRS, dilation=PAIRS,
       stride=PAIRS, padding=st.lists(st.integers(0, 2), min_size=2, max_size=2))  # fmt: skip
def test_windows_become_columns_and_back(
    data: Any,
    dtype: torch.dtype,
    batch: tuple[int, ...],
    kernel: list[int],
    dilation: list[int],
    stride: list[int],
    padding: list[int],
) -> None:
    image = [d * (k - 1) + 1 + data.draw(st.integers(0, 3)) for d, k in zip(dilation, kernel, strict=True)]
    x = data.draw(values((*batch, 2, *image), dtype, True))
    rest = (kernel, dilation, padding, stride)
    agree("aten::im2col", x, *rest)
    shape = torch.ops.aten.im2col(x, *rest).shape
    agree("aten::col2im", torch.randn(shape, dtype=dtype), image, *rest)


def test_windows_that_do_not_fit_are_left_to_the_host() -> None:
    with pytest.raises(Unsupported):
        run("aten::im2col", torch.ones(1, 2, 2), [3, 3], [1, 1], [0, 0], [1, 1])
    with pytest.raises(Unsupported):
        run("aten::col2im", torch.ones(3, 4), [4, 4], [2, 2], [1, 1], [0, 0], [2, 2])
