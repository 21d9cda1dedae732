from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import FLOATS, agree, given, run, values
from hypothesis import strategies as st

from flroute.vendor import Unsupported


@given(data=st.data(), dtype=st.sampled_from(FLOATS), spatial=st.integers(1, 3), batch=st.sampled_from([(), (2,), (0,)]),
       mode=st.sampled_from(["reflection", "replication"]), special=st.booleans())  # fmt: skip
def test_padding(
    data: Any, dtype: torch.dtype, spatial: int, batch: tuple[int, ...], mode: str, special: bool
) -> None:
    image = data.draw(st.lists(st.integers(2, 5), min_size=spatial, max_size=spatial))
    padding: list[int] = []
    for size in reversed(image):
        limit = size - 1 if mode == "reflection" else 4
        padding += data.draw(st.lists(st.integers(0, limit), min_size=2, max_size=2))
    x = data.draw(values((*batch, 3, *image), dtype, special))
    op = f"aten::{mode}_pad{spatial}d"
    agree(op, x, padding)
    gradient = torch.randn(run(op, x, padding).shape, dtype=dtype)
    agree(f"{op}_backward", gradient, x, padding)


@pytest.mark.parametrize("mode", ["reflection", "replication"])
def test_complex_numbers(mode: str) -> None:
    x = torch.randn(2, 3, 5, dtype=torch.complex64)
    made = torch.from_numpy(run(f"aten::{mode}_pad1d", x, [2, 1]))
    assert torch.equal(made, getattr(torch.ops.aten, f"{mode}_pad1d")(x, [2, 1]))


def test_cropping_is_a_negative_padding() -> None:
    x = torch.randn(2, 3, 6)
    agree("aten::replication_pad1d", x, [-1, 2])
    agree("aten::replication_pad1d_backward", torch.randn(2, 3, 7), x, [-1, 2])


@pytest.mark.parametrize(
    ("shape", "padding"), [((2, 3), [3, 0]), ((2, 3), [0, 3]), ((3,), [1, 1]), ((2, 0), [1, 1])]
)
def test_what_the_host_refuses_is_left_to_it(shape: tuple[int, ...], padding: list[int]) -> None:
    with pytest.raises(Unsupported):
        run("aten::reflection_pad1d", torch.ones(shape), padding)
