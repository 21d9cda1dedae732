"""The page about tolerances, made from their data: ``python -m flroute.drift.tolerances_page > docs/tolerances.md``."""

from __future__ import annotations

import torch

from flroute.drift.tolerances import op_classes, stated, tolerance_for

_HEAD = """# Tolerances

This page is generated: `python -m flroute.drift.tolerances_page > docs/tolerances.md`. The data are in
`src/flroute/drift/tolerances.toml`.

A kernel's result is judged against the exact result of its op for *the inputs that the kernel was given*, computed in float64. An
element is right within

    rtol * |exact| + atol * scale

where scale is the largest magnitude in the exact result. Integers and truth values are to be exact; infinities and NaNs must be
where they are in the exact result, once that is rounded to the dtype.

    rtol = rtol_eps * eps(dtype of the result)
    atol = atol_eps * eps(dtype that is computed in) * growth(reduction size)

float16, bfloat16 and float8 are computed in float32 and rounded once at the end; other types in themselves, and so is what a
device splits into other ops, each of which rounds its result. The reduction size is how many elements are added up for one of the
result.

Where a result is beyond its tolerance, one thing more is asked before it counts as wrong: how much the exact result moves when its
inputs are off by one rounding. A kernel cannot do better than that on an ill-conditioned problem, so it may be off by as much.

## Classes of ops

| class | what it does | rtol_eps | atol_eps | growth | float32, 1024 added | bfloat16, 1024 added |
|---|---|---|---|---|---|---|
"""

_EXAMPLES = {
    "exact": "aten::max",
    "arithmetic": "aten::add.Tensor",
    "elementwise": "aten::lerp.Tensor",
    "transcendental": "aten::exp",
    "special": "aten::lgamma",
    "reduction": "aten::sum",
    "scan": "aten::cumsum",
    "product": "aten::mm",
    "convolution": "aten::convolution",
    "softmax": "aten::_softmax",
    "normalization": "aten::native_layer_norm",
    "attention": "aten::_scaled_dot_product_flash_attention",
    "cell": "aten::_thnn_fused_lstm_cell",
    "interpolation": "aten::upsample_bilinear2d",
    "transform": "aten::_fft_c2c",
    "solver": "aten::linalg_solve",
}

_VENDORS = """
## A vendor's own

```python
Vendor(
    name="acme",
    ...,
    tolerances={
        "aten::gelu": {"bfloat16": (2e-2, 1e-3)},     # (rtol, atol) of an op, by its full name or a pattern of it
        "product": {"float32": (1e-3, 1e-3)},         # of a class: tensor cores that multiply in tf32
        "transcendental": {"*": (1e-5, 1e-6)},        # for every dtype that is not named
    },
)
```

The first line that fits counts, and what it says is used as it stands, whatever the reduction size. Every report says whose
tolerance was used: `flroute: product`, `acme: aten::gelu`.
"""


def to_markdown() -> str:
    """The page."""
    rows = "".join(_class_row(name) for name in op_classes())
    families = "".join(f"| {family} | {kind} |\n" for family, kind in stated()["families"].items())
    ops = "".join(f"| {_code(patterns)} | {kind} |\n" for patterns, kind in stated()["ops"].items())
    return (
        _HEAD
        + rows
        + "\n## The class of a family of ops\n\n| family | class |\n|---|---|\n"
        + families
        + "\n## Ops whose class is not their family's\n\n| ops | class |\n|---|---|\n"
        + ops
        + _VENDORS
    )


def _code(patterns: str) -> str:
    return " ".join(f"`{pattern}`" for pattern in patterns.split())


def _class_row(name: str) -> str:
    kind = op_classes()[name]
    shown = []
    for dtype in (torch.float32, torch.bfloat16):
        allowed = tolerance_for(_EXAMPLES[name], dtype, 1024)
        shown.append(f"{allowed.rtol:.2g}, {allowed.atol:.2g}" if not allowed.is_exact else "exact")
    cells = (name, kind.about, f"{kind.rtol_eps}", f"{kind.atol_eps}", kind.growth, *shown)
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    print(to_markdown(), end="")  # noqa: T201 -- the page is what it is run for
