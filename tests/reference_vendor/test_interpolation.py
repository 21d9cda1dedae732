from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import FLOATS, agree, given, run, values
from hypothesis import strategies as st

from flroute.vendor import Unsupported

NEAREST = [f"{name}{d}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for d in (1, 2, 3)]
SMOOTH = ["upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
          "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa"]  # fmt: skip


@pytest.mark.parametrize("name", NEAREST + SMOOTH)
@given(data=st.data(), dtype=st.sampled_from(FLOATS), align_corners=st.booleans(), batch=st.integers(0, 2))
def test_interpolation(name: str, data: Any, dtype: torch.dtype, align_corners: bool, batch: int) -> None:
    spatial = int(name.removesuffix("_aa")[-2])
    sizes = st.lists(st.integers(1, 7), min_size=spatial, max_size=spatial)
    image, output = data.draw(sizes), data.draw(sizes)
    factors = st.sampled_from([1.0, 1.25])
    if name.endswith("_aa"):
        factors = st.just(1.0)
        for size in (image, output):  # the host mistakes a single column for another memory format
            size[-1] = max(size[-1], 2)
    scales: list[float | None] = [None] * spatial
    if data.draw(
        st.booleans()
    ):  # given, they win over the sizes; by which path the host comes to 1 and 2 is its own
        pairs = zip(image, output, strict=True)
        scales = [o / i * (1 if o in (i, 2 * i) else data.draw(factors)) for i, o in pairs]
    x = data.draw(values((batch, 2, *image), dtype))
    flags = [] if name in NEAREST else [align_corners]
    agree(f"aten::{name}", x, output, *flags, *scales)
    gradient = data.draw(values((batch, 2, *output), dtype))
    agree(f"aten::{name}_backward", gradient, output, list(x.shape), *flags, *scales)


@pytest.mark.parametrize("name", ["upsample_nearest2d", "_upsample_nearest_exact2d"])
def test_nearest_of_bytes(name: str) -> None:
    agree(f"aten::{name}", torch.randint(0, 256, (1, 3, 4, 5), dtype=torch.uint8), [7, 3])


@pytest.mark.parametrize("name", ["upsample_bilinear2d", "_upsample_bilinear2d_aa"])
def test_what_is_not_finite_spreads_as_far_as_its_taps(name: str) -> None:
    for value in (float("nan"), float("inf")):
        x = torch.randn(1, 1, 9, 9)
        x[0, 0, 4, 2] = value
        for output in ([4, 5], [14, 20]):
            agree(f"aten::{name}", x, output, False)


def test_many_sizes_pick_the_host_s_neighbours() -> None:
    x = torch.arange(97.0).reshape(1, 1, 97)
    for name in ("upsample_nearest1d", "_upsample_nearest_exact1d"):
        for size in range(1, 200, 3):
            agree(f"aten::{name}", x, [size])
            agree(f"aten::{name}", x, [size], size / 97 + 0.01)


def test_sizes_that_do_not_fit_are_left_to_the_host() -> None:
    for shape, output in (((1, 2, 3), [4, 4]), ((1, 0, 3, 3), [4, 4]), ((1, 2, 3, 3), [0, 4])):
        with pytest.raises(Unsupported):
            run("aten::upsample_nearest2d", torch.ones(shape), output)
