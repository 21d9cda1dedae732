from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from against_host import FLOATS, agree, given, run, values
from hypothesis import strategies as st
from torch.nn import functional

from flroute.vendor import Unsupported


@given(data=st.data(), dtype=st.sampled_from(FLOATS), p=st.sampled_from([0.0, 0.3, 1.0]), train=st.sampled_from([True, False, None]),
       shape=st.sampled_from([(), (7,), (3, 4), (0,)]))  # fmt: skip
def test_the_host_s_elements_are_dropped(
    data: st.DataObject, dtype: torch.dtype, p: float, train: bool | None, shape: tuple[int, ...]
) -> None:
    x = data.draw(values(shape, dtype, special=True))
    torch.manual_seed(3)
    output, mask = run("aten::native_dropout", x, p, train)
    torch.manual_seed(3)
    expected = torch.ops.aten.native_dropout(x, p, train)
    torch.testing.assert_close(torch.from_numpy(np.asarray(output)), expected[0], equal_nan=True)
    assert torch.equal(torch.from_numpy(mask), expected[1])
    agree("aten::native_dropout_backward", data.draw(values(shape, dtype)), expected[1], 1.4)


@pytest.mark.parametrize("layout", [torch.clone, torch.t])
def test_on_the_device_as_on_the_host(layout: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(5, 7).requires_grad_()
    there = x.detach().to("fl:0").requires_grad_()
    results = []
    for tensor in (x, there):
        torch.manual_seed(1)
        output = functional.dropout(layout(tensor), 0.4)
        output.sum().backward()
        results.append((output.detach().cpu(), tensor.grad.cpu()))
    torch.testing.assert_close(*results)


def test_a_probability_beyond_one_is_left_to_the_host() -> None:
    with pytest.raises(Unsupported):
        run("aten::native_dropout", torch.ones(3), 1.5, True)
