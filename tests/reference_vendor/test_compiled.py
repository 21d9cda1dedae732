"""Compiled kernels: as exact as PyTorch's own, chosen where they are faster, and never needed."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from judge import Function, as_tuple, check
from torch.nn import functional as F  # noqa: N812 -- PyTorch's own name for it

import flroute
from flroute.reference_vendor import compiled
from flroute.reference_vendor.compiled.launch import Source, block_of, ceil_div
from flroute.reference_vendor.compiled.sizes import MIN_NUMEL
from flroute.reference_vendor.triton_cpu import UnsupportedKernelError, direct
from support import decision_of, needs_triton

needs_triton()

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
HALVES = [torch.float16, torch.bfloat16]


POINTWISE: dict[str, tuple[Function, int]] = {
    "relu": (torch.relu, 1),
    "sigmoid": (torch.sigmoid, 1),
    "silu": (F.silu, 1),
    "tanh": (torch.tanh, 1),
    "exp": (torch.exp, 1),
    "log": (torch.log, 1),
    "rsqrt": (torch.rsqrt, 1),
    "gelu": (F.gelu, 1),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), 1),
    "gelu backward": (aten.gelu_backward, 2),
    "gelu tanh backward": (lambda g, x: aten.gelu_backward(g, x, approximate="tanh"), 2),
    "sigmoid backward": (aten.sigmoid_backward, 2),
    "tanh backward": (aten.tanh_backward, 2),
    "silu backward": (aten.silu_backward, 2),
    "threshold backward": (lambda g, x: aten.threshold_backward(g, x, 0.25), 2),
}
POWERS: dict[str, tuple[Function, int]] = {
    "3.5": (lambda x: x.pow(3.5), 1),
    "5": (lambda x: x.pow(5), 1),
    "-0.3": (lambda x: x.pow(-0.3), 1),
    "tensor": (torch.pow, 2),
}
"""Of float32 alone."""
HALF: dict[str, Function] = {
    "add": torch.add,
    "add with alpha": lambda x, y: torch.add(x, y, alpha=0.3),
    "sub": torch.sub,
    "sub with alpha": lambda x, y: torch.sub(x, y, alpha=3),
    "mul": torch.mul,
    "div": torch.div,
}
ROWS: dict[str, tuple[Function, int]] = {
    "softmax": (lambda x: x.softmax(-1), 1),
    "safe softmax": (lambda x: aten._safe_softmax(x, -1), 1),
    "log_softmax": (lambda x: x.log_softmax(-1), 1),
    "softmax backward": (lambda g, y: aten._softmax_backward_data(g, y, -1, g.dtype), 2),
    "log_softmax backward": (lambda g, y: aten._log_softmax_backward_data(g, y, -1, g.dtype), 2),
    "sum": (torch.sum, 1),
    "sum of rows": (lambda x: x.sum(-1), 1),
    "sum of the last two": (lambda x: x.reshape(1, *x.shape).sum((1, -1), keepdim=True), 1),
    "mean": (torch.mean, 1),
    "mean of rows": (lambda x: x.mean(-1, keepdim=True), 1),
    "sums so far": (lambda x: x.cumsum(-1), 1),
    "sums so far of all": (lambda x: x.reshape(-1).cumsum(0), 1),
    "RMS norm": (lambda x: F.rms_norm(x, x.shape[-1:]), 1),
    "RMS norm with weight": (lambda x, w: F.rms_norm(x, x.shape[-1:], w[0].contiguous(), 1e-3), 2),
    "layer norm": (lambda x: aten.native_layer_norm(x, x.shape[-1:], None, None, 1e-5), 1),
    "layer norm with parameters": (
        lambda x, p: aten.native_layer_norm(x, x.shape[-1:], p[0].contiguous(), p[-1].contiguous(), 1e-3), 2,
    ),
    "layer norm backward": (
        lambda g, x: aten.native_layer_norm_backward(
            g, x, x.shape[-1:], x[:, :1].contiguous(), x[:, :1].abs().contiguous(), x[0].contiguous(), x[0].contiguous(),
            [True] * 3,
        ), 2,
    ),
}  # fmt: skip
EVERY = {**POINTWISE, **ROWS}


def _sizes(x: torch.Tensor) -> tuple[int, int, int]:
    """Samples, channels and positions."""
    return x.shape[0], x.shape[1], x[0, 0].numel()


def _one(x: torch.Tensor, row: int, column: int) -> torch.Tensor:
    """A number per channel."""
    return x[0, :, row, column].contiguous()


IMAGES: dict[str, tuple[Function, int]] = {
    "batch norm": (lambda x: aten.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5), 1),
    "batch norm with parameters": (
        lambda x, p: aten.native_batch_norm(x, _one(p, 0, 0), _one(p, 1, 1), None, None, True, 0.1, 1e-3), 2,
    ),
    "batch norm, evaluated": (
        lambda x, p: aten.native_batch_norm(x, None, _one(p, 0, 0), _one(p, 0, 1), _one(p, 0, 0).abs(), False, 0.1, 1e-3)[:1], 2,
    ),
    "batch norm backward": (
        lambda g, x: aten.native_batch_norm_backward(
            g, x, _one(x, 0, 0), None, None, x.mean((0, 2, 3)), 1 / x.std((0, 2, 3)), True, 1e-5, [True] * 3
        ), 2,
    ),
    "group norm": (lambda x: aten.native_group_norm(x, None, None, *_sizes(x), x.shape[1], 1e-5), 1),
    "group norm with parameters": (
        lambda x, p: aten.native_group_norm(x, _one(p, 0, 0), _one(p, 0, 1), *_sizes(x), 1, 1e-2), 2,
    ),
    "group norm backward": (
        lambda g, x: aten.native_group_norm_backward(
            g, x, x[:, :1, 0, 0].contiguous(), x[:, :1, 0, 1].abs().contiguous(), _one(x, 0, 2), *_sizes(x), 1, [True] * 3
        ), 2,
    ),
    "group norm backward, of the input": (
        lambda g, x: aten.native_group_norm_backward(
            g, x, x[..., 0, 0].contiguous(), x[..., 0, 1].abs().contiguous(), None, *_sizes(x), x.shape[1], [True, False, False]
        )[:1], 2,
    ),
    "batch norm backward, evaluated": (
        lambda g, x: aten.native_batch_norm_backward(
            g, x, None, _one(x, 0, 0), _one(x, 0, 1).abs(), None, None, False, 1e-2, [True, False, True]
        )[::2], 2,
    ),
}  # fmt: skip
"""Functions of (samples, channels, height, width); parameters are columns of a second such tensor."""
IMAGES_OF_SIZES = [
    (name, shape)
    for name in IMAGES
    for shape in [(3, 5, 4, 4), (2, 3, 37, 41), (1, 2, 5, 7), (4, 9, 40, 40)]
    if not name.startswith("group norm") or math.prod(shape) >= MIN_NUMEL["group_norm"]
]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", POINTWISE)
def test_elementwise(name: str, dtype: torch.dtype) -> None:
    function, count = POINTWISE[name]
    check(function, *((torch.randn(3, 5501) * 3).to(dtype) for _ in range(count)))


@pytest.mark.parametrize("name", POWERS)
def test_powers(name: str) -> None:
    function, count = POWERS[name]
    check(function, *(torch.randn(3, 5501) * 3 for _ in range(count)))
    special = torch.tensor(SPECIAL)
    check(function, *([special.repeat_interleave(13), special.repeat(13)][:count]))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", HALF)
def test_arithmetic_of_half_precision(name: str, dtype: torch.dtype) -> None:
    check(HALF[name], torch.randn(4097).to(dtype), torch.randn(4097).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(130, 33), (9, 4099), (300, 64), (3, 1500)], ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    function, count = ROWS[name]
    check(function, *((torch.randn(shape) + 0.1).to(dtype) for _ in range(count)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("name", "shape"), IMAGES_OF_SIZES, ids=str)
def test_images(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    function, count = IMAGES[name]
    if name.startswith("group norm"):  # is compiled from larger ones on
        shape = (shape[0] * 120, shape[1], *shape[2:])
    check(lambda *inputs: function(*inputs), *((torch.randn(shape) + 0.5).to(dtype) for _ in range(count)))


def test_running_statistics_are_the_hosts() -> None:
    host, ours = torch.nn.BatchNorm2d(6), torch.nn.BatchNorm2d(6).to("fl")
    for _ in range(3):
        x = torch.randn(4, 6, 5, 5) * 3 + 1
        host(x)
        ours(x.to("fl"))
    torch.testing.assert_close(ours.running_mean.cpu(), host.running_mean)
    torch.testing.assert_close(ours.running_var.cpu(), host.running_var)


SPECIAL = [
    0.0,
    -0.0,
    float("inf"),
    float("-inf"),
    float("nan"),
    1e-40,
    -1e-45,
    88.5,
    -88.5,
    -104.0,
    1e30,
    -1e30,
    0.25,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [*POINTWISE, "softmax", "safe softmax", "log_softmax"])
def test_special_values(name: str, dtype: torch.dtype) -> None:
    function, count = EVERY[name]
    values = torch.tensor(SPECIAL * 1400).to(dtype)
    inputs = [torch.ones_like(values)] * (count - 1) + [values]
    if name in ROWS:
        inputs = [torch.cat([values.reshape(-1, 100), torch.full((3, 100), -torch.inf, dtype=dtype)])]
    check(function, *inputs)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(["gelu", "silu backward", "softmax", "layer norm", "sum of rows", "mean"]),
    rows=st.integers(1, 70),
    width=st.integers(64, 300),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**16),
)
def test_any_shape(name: str, rows: int, width: int, dtype: torch.dtype, seed: int) -> None:
    function, count = EVERY[name]
    rows = max(rows, 4096 // width + 1) if name == "sum of rows" else rows
    generator = torch.Generator().manual_seed(seed)
    check(function, *(torch.randn(rows, width, generator=generator).to(dtype) + 0.2 for _ in range(count)))


@pytest.fixture(name="threads")
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", ["gelu", "softmax", "sum", "layer norm backward"])
def test_results_do_not_depend_on_the_number_of_threads(name: str) -> None:
    function, count = EVERY[name]
    inputs = [torch.randn(700, 500).to("fl") for _ in range(count)]
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        function(*inputs)  # measures whether it is worth splitting
        found.append([t.cpu() for t in as_tuple(function(*inputs))])
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_small_tensors_are_numpys_and_the_reason_is_their_size() -> None:
    x = torch.randn(100).to("fl")
    with flroute.enable("reference", fallback="error", default_device=False) as session:
        torch.relu(x)
    decision = decision_of(session, "aten::relu")
    assert decision.kernel == "reference/numpy:relu"
    assert [(r.kernel, r.reason) for r in decision.rejected] == [("reference/triton:relu", "size")]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda x: x.t().sigmoid(), "layout"),
        (lambda x: x.softmax(0), "predicate"),
        (lambda x: x.sum(0), "predicate"),
        (lambda x: F.gelu(x.int().float(), approximate="tanh"), None),
    ],
)
def test_what_a_compiled_kernel_is_not_for_goes_to_numpy(call: Function, reason: str | None) -> None:
    host = torch.randn(90, 100)
    with flroute.enable("reference", fallback="error", default_device=False) as session:
        torch.testing.assert_close(call(host.to("fl")).cpu(), call(host))
    reasons = {
        r.reason
        for d in session.decisions
        for r in d.rejected
        if d.op != "aten::_to_copy" and r.kernel.startswith("reference/triton")
    }
    assert reasons == ({reason} if reason else set())


def test_an_order_leaves_them_out() -> None:
    x = torch.randn(500).to("fl")
    with flroute.enable("reference", order={"aten::gelu": ["numpy"]}, default_device=False) as session:
        F.gelu(x)
    assert decision_of(session, "aten::gelu").kernel == "reference/numpy:gelu"


def test_a_kernel_that_cannot_be_compiled_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedKernelError("math.erf", "not on this CPU", "kernel.py:3")

    monkeypatch.setattr(direct, "load", refuse)
    monkeypatch.setattr("flroute.reference_vendor.compiled.pointwise._SOURCE", Source("pointwise", "common"))
    x = torch.randn(500)
    with flroute.enable("reference", fallback="error", default_device=False) as session:
        torch.testing.assert_close(F.gelu(x.to("fl")).cpu(), F.gelu(x))
    decision = decision_of(session, "aten::gelu")
    assert decision.kernel == "reference/numpy:gelu"
    assert decision.rejected[0].reason == "unsupported"
    assert "not on this CPU" in decision.rejected[0].detail


@pytest.mark.parametrize("missing", ["triton", "llvmlite"])
def test_without_the_extra_there_are_none(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(compiled, "find_spec", lambda name: None if name == missing else find(name))
    assert compiled.kernels() == ()


def test_every_kernel_is_accepted() -> None:
    registry_names = {kernel.name for kernel in compiled.kernels()}
    assert len(registry_names) >= 24
    for kernel in compiled.kernels():
        if "attention" in kernel.name:  # it takes heads as they lie, and its predicate counts scores
            assert (kernel.layouts, kernel.min_numel) == ((), 0)
            assert kernel.when is not None
        else:
            assert kernel.layouts == ("contiguous",)
            assert kernel.min_numel > 0


def test_blocks() -> None:
    assert [block_of(n) for n in (1, 2, 3, 64, 65)] == [2, 2, 4, 64, 128]
    assert [ceil_div(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]


@pytest.mark.parametrize("special", [torch.inf, torch.nan, 1e18])
def test_what_a_long_row_has_met_is_not_in_the_sums_before_it(special: float) -> None:
    x = torch.full((1 << 19,), 1e-3, dtype=torch.float64)
    at = (1 << 18) + 1000  # within a chunk, which threads begin with the sum of those before
    x[at] = special
    ours = x.to("fl").cumsum(0).cpu()
    torch.testing.assert_close(ours[:at], x.cumsum(0)[:at], rtol=1e-9, atol=0)
    torch.testing.assert_close(ours[at:], x.cumsum(0)[at:], rtol=1e-9, atol=0, equal_nan=True)
