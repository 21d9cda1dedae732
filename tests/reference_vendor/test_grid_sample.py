from __future__ import annotations

import pytest
import torch
from against_host import FLOATS, agree, given, run
from hypothesis import strategies as st

from flroute.vendor import Unsupported


@pytest.mark.parametrize("padding", [0, 1, 2], ids=["zeros", "border", "reflection"])
@pytest.mark.parametrize(
    ("spatial", "mode"),
    [(2, 0), (2, 1), (2, 2), (3, 0), (3, 1)],
    ids=["bilinear", "nearest", "bicubic", "trilinear", "nearest in three"],
)
@given(dtype=st.sampled_from(FLOATS), align_corners=st.booleans(), seed=st.integers(0, 1000), size=st.integers(1, 4),
       both=st.booleans())  # fmt: skip
def test_grid_sample(
    spatial: int,
    mode: int,
    padding: int,
    dtype: torch.dtype,
    align_corners: bool,
    seed: int,
    size: int,
    both: bool,
) -> None:
    torch.manual_seed(seed)
    x = torch.randn(2, 3, *range(size, size + spatial), dtype=dtype)
    grid = torch.randn(2, *range(2, 2 + spatial), spatial, dtype=dtype) * 1.5
    rest = (mode, padding, align_corners)
    op = f"aten::grid_sampler_{spatial}d"
    agree(op, x, grid, *rest)
    gradient = torch.randn(run(op, x, grid, *rest).shape, dtype=dtype)
    agree(f"{op}_backward", gradient, x, grid, *rest, [both, True])


@pytest.mark.parametrize("padding", [0, 1, 2])
def test_points_that_are_nowhere(padding: int) -> None:
    x, grid = torch.randn(1, 2, 4, 4), torch.zeros(1, 1, 4, 2)
    grid[0, 0, :, 0] = torch.tensor([float("nan"), 1e30, -1e30, 0.3])
    for mode in (0, 1):
        agree("aten::grid_sampler_2d", x, grid, mode, padding, False)


def test_what_does_not_fit_is_left_to_the_host() -> None:
    for x, grid, mode in (
        ((2, 3, 4, 4), (1, 2, 2, 2), 0),
        ((1, 3, 4, 4), (1, 2, 2, 3), 0),
        ((1, 3, 4, 4), (1, 2, 2, 2), 7),
    ):
        with pytest.raises(Unsupported):
            run("aten::grid_sampler_2d", torch.ones(x), torch.ones(grid), mode, 0, False)
