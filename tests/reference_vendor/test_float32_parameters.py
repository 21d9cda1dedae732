"""Normalizations of half precision with parameters and statistics in float32: the host's dtypes, and its accuracy or better."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- PyTorch's own name for it

import flroute

aten = torch.ops.aten
HALVES = [torch.bfloat16, torch.float16]
Tensors = dict[str, torch.Tensor]

NORMALIZATIONS: dict[str, tuple[Callable[[Tensors], torch.Tensor], str]] = {
    "layer norm": (lambda t: F.layer_norm(t["x"], t["x"].shape[-1:], t["w16"], t["b16"]), "native_layer_norm"),
    "layer norm, weight alone": (
        lambda t: F.layer_norm(t["x"], t["x"].shape[-1:], t["w16"]) + t["b16"], "native_layer_norm",
    ),
    "group norm": (lambda t: F.group_norm(t["x"], 3, t["w6"], t["b6"]), "native_group_norm"),
    "batch norm": (
        lambda t: F.batch_norm(t["x"], t["mean"], t["var"], t["w6"], t["b6"], training=True), "native_batch_norm",
    ),
    "batch norm without parameters": (
        lambda t: F.batch_norm(t["x"], t["mean"], t["var"], training=True), "native_batch_norm",
    ),
    "batch norm without statistics": (
        lambda t: F.batch_norm(t["x"], None, None, t["w6"], t["b6"], training=True), "native_batch_norm",
    ),
    "batch norm, evaluated": (
        lambda t: F.batch_norm(t["x"], t["mean"], t["var"], t["w6"], t["b6"]), "native_batch_norm",
    ),
    "instance norm": (
        lambda t: F.instance_norm(t["x"], weight=t["w6"], bias=t["b6"]), "native_batch_norm",
    ),
}  # fmt: skip


def drawn(dtype: torch.dtype) -> Tensors:
    torch.manual_seed(0)
    x = torch.randn(3, 6, 32, 16).to(dtype)
    return {
        "x": x, "w16": torch.rand(16) + 0.5, "b16": torch.randn(16), "w6": torch.rand(6) + 0.5, "b6": torch.randn(6),
        "mean": torch.randn(6), "var": torch.rand(6) + 0.5,
    }  # fmt: skip


def outcome(
    function: Callable[[Tensors], torch.Tensor], inputs: Tensors, put: Callable[[Any], Any]
) -> Tensors:
    """The result, the gradients of what it was made of, and the statistics that were kept."""
    ours = {name: put(t) for name, t in inputs.items()}
    trained = {name: t.requires_grad_() for name, t in ours.items() if name not in ("mean", "var")}
    output = function(ours)
    cotangent = put(torch.linspace(0.5, 1.5, output.numel()).reshape(output.shape).to(output.dtype))
    gradients = torch.autograd.grad(output, list(trained.values()), cotangent, allow_unused=True)
    found = {f"gradient of {name}": g for name, g in zip(trained, gradients, strict=True) if g is not None}
    return {"output": output, **found, "mean": ours["mean"], "var": ours["var"]}


@pytest.mark.parametrize("implementation", ["numpy", "triton"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_it_is_native_and_as_exact_as_the_hosts(name: str, dtype: torch.dtype, implementation: str) -> None:
    function, op = NORMALIZATIONS[name]
    inputs = drawn(dtype)
    order = {f"aten::{part}": [implementation] for part in (op, f"{op}_backward")}
    with flroute.enable("reference", fallback="error", default_device=False, order=order) as session:
        ours = outcome(function, inputs, lambda t: t.to("fl", copy=True))
    used = {d.op: d.kernel for d in session.decisions}
    for part in (op, f"{op}_backward"):
        assert (used[f"aten::{part}"] or "").startswith(f"reference/{implementation}:")
    host = outcome(function, inputs, lambda t: t.clone())
    exact = outcome(function, inputs, lambda t: t.to(torch.float64, copy=True))
    assert ours.keys() == host.keys()
    for part, found in ours.items():
        theirs, true = host[part], exact[part]
        assert (found.dtype, found.shape, found.stride()) == (theirs.dtype, theirs.shape, theirs.stride()), (
            part
        )
        error, of_the_host = ((t.cpu().double() - true).abs().max() for t in (found, theirs))
        # The exact gradient is of an output that was not rounded.
        assert error <= 2 * of_the_host + 4 * torch.finfo(found.dtype).eps * true.abs().max(), part


@pytest.mark.parametrize("implementation", ["numpy", "triton"])
def test_a_gradient_of_a_parameter_is_not_rounded_to_half_precision(implementation: str) -> None:
    """Nor are the statistics that are saved for it."""
    inputs = drawn(torch.bfloat16)
    x, weight = inputs["x"].to("fl"), inputs["w16"].to("fl")
    order = {
        "aten::native_layer_norm_backward": [implementation],
        "aten::native_layer_norm": [implementation],
    }
    with flroute.enable("reference", fallback="error", default_device=False, order=order):
        _, mean, rstd = aten.native_layer_norm(x, [16], weight, weight, 1e-5)
        _, for_weight, for_bias = aten.native_layer_norm_backward(
            x, x, [16], mean, rstd, weight, weight, [True] * 3
        )
    for t in (mean, rstd, for_weight, for_bias):
        assert t.dtype is torch.float32
        assert not torch.equal(t.bfloat16().float(), t)


def test_the_fused_rms_norm_takes_a_weight_in_float32() -> None:
    """PyTorch splits ``rms_norm`` of two dtypes before it comes here; what calls the op itself may give them."""
    inputs = drawn(torch.bfloat16)
    x, weight = inputs["x"].to("fl"), inputs["w16"].to("fl")
    with flroute.enable("reference", fallback="error", default_device=False) as session:
        output, rstd = aten._fused_rms_norm(x, [16], weight, 1e-5)
        gradients = aten._fused_rms_norm_backward(x, x, [16], rstd, weight, [True, True])
    assert "reference/triton:rms_norm" in {d.kernel for d in session.decisions}
    exact = [inputs["x"].double().requires_grad_(), inputs["w16"].double().requires_grad_()]
    wanted = F.rms_norm(exact[0], [16], exact[1], 1e-5)
    truth = [wanted, *torch.autograd.grad(wanted, exact, inputs["x"].double())]
    for found, true in zip([output, *gradients], truth, strict=True):
        torch.testing.assert_close(found.cpu().double(), true, rtol=1e-2, atol=2e-2)
    assert [t.dtype for t in (output, rstd, *gradients)] == [
        torch.bfloat16,
        torch.float32,
        torch.bfloat16,
        torch.float32,
    ]
    assert not torch.equal(gradients[1].bfloat16().float(), gradients[1])


def test_the_older_name_of_the_gradient_keeps_float32_too() -> None:
    inputs = drawn(torch.bfloat16)

    def gradients(put: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        x, weight, mean, var = (put(inputs[name]) for name in ("x", "w6", "mean", "var"))
        reserve = put(torch.empty(0, dtype=torch.uint8))
        _, centre, root = aten.native_batch_norm(x, weight, weight, mean, var, True, 0.1, 1e-5)
        return aten.batch_norm_backward(
            x, x, weight, mean, var, centre, root, True, 1e-5, [True] * 3, reserve
        )

    with flroute.enable("reference", fallback="error", default_device=False):
        ours = gradients(lambda t: t.to("fl", copy=True))
    for found, theirs in zip(ours, gradients(lambda t: t.clone()), strict=True):
        assert found.dtype is theirs.dtype
        torch.testing.assert_close(found.cpu(), theirs, rtol=2e-2, atol=2e-1)


@pytest.mark.parametrize("parameters", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["layer norm", "group norm", "batch norm"])
def test_what_the_host_refuses_is_refused(name: str, parameters: torch.dtype) -> None:
    inputs = drawn(torch.float32)
    inputs = {k: t if k in ("x", "mean", "var") else t.to(parameters) for k, t in inputs.items()}
    function, _ = NORMALIZATIONS[name]
    with pytest.raises(RuntimeError, match=r"dtype|datatype|scalar type"):
        function(inputs)
    with pytest.raises(RuntimeError, match=r"dtype|datatype|scalar type"):
        function({k: t.to("fl") for k, t in inputs.items()})


@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_model_under_autocast_is_native(dtype: torch.dtype, grad: bool) -> None:
    """Convolutions and products answer in half precision; parameters are float32."""

    def made() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3),
            torch.nn.InstanceNorm2d(8, affine=True), torch.nn.GroupNorm(2, 8), torch.nn.Flatten(),
            torch.nn.Linear(8 * 64, 16), torch.nn.LayerNorm(16), torch.nn.RMSNorm(16), torch.nn.Linear(16, 4),
        )  # fmt: skip

    x = torch.randn(2, 3, 12, 12)
    model = made().to("fl")
    with (
        flroute.enable("reference", fallback="error", default_device=False) as session,
        torch.inference_mode(not grad),
        torch.autocast("fl", dtype=dtype),
    ):
        output = model(x.to("fl"))
        if grad:
            output.float().square().mean().backward()
    assert output.dtype is dtype
    assert session.fallbacks == []
    torch.testing.assert_close(output.cpu().float(), made()(x), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("weight", [None, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("x", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rms_norm_under_autocast_is_float32_as_the_lists_say(
    x: torch.dtype, weight: torch.dtype | None, inference: bool
) -> None:
    values, w = torch.randn(4, 16).to(x), None if weight is None else torch.rand(16).to(weight)
    for session in (False, True):
        with (
            flroute.enable("reference", fallback="error", default_device=False)
            if session
            else torch.no_grad(),
            torch.inference_mode(inference),
            torch.autocast("fl", dtype=torch.bfloat16),
        ):
            found = F.rms_norm(values.to("fl"), [16], None if w is None else w.to("fl"))
        assert found.dtype is torch.float32
        wanted = F.rms_norm(values.float(), [16], None if w is None else w.float())
        torch.testing.assert_close(found.cpu(), wanted)


@given(
    shape=st.tuples(st.integers(2, 5), st.integers(1, 4), st.integers(1, 6), st.integers(1, 6)),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
    affine=st.booleans(),
    training=st.booleans(),
)
@settings(max_examples=8)
def test_batch_norm_of_any_shape_is_the_hosts_in_float64(
    shape: tuple[int, ...], dtype: torch.dtype, affine: bool, training: bool
) -> None:
    torch.manual_seed(0)
    model = nn.BatchNorm2d(shape[1], affine=affine).train(training)
    x, gradient = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    expected_model = copy.deepcopy(model).double()
    wide = x.double().requires_grad_()
    expected = expected_model(wide)
    expected.backward(gradient.double())
    with flroute.enable(fallback="error", default_device=False) as session:
        model.to("fl")
        narrow = x.to("fl").requires_grad_()
        result = model(narrow)
        result.backward(gradient.to("fl"))
        kernels = {d.kernel for d in session.decisions if "batch_norm" in d.op and d.kernel}
    assert len(kernels) == 2, "one forward, one backward, in numpy or compiled as the size has it"
    assert result.dtype is dtype
    rounding = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 2 * torch.finfo(dtype).eps}
    torch.testing.assert_close(result.detach().cpu().double(), expected.detach(), **rounding)
    assert narrow.grad is not None
    scale = float(wide.grad.abs().max()) + 1  # type: ignore[union-attr]
    torch.testing.assert_close(narrow.grad.cpu().double() / scale, wide.grad / scale, **rounding)  # type: ignore[operator]
    torch.testing.assert_close(
        model.running_var.cpu().double(), expected_model.running_var, rtol=1e-5, atol=1e-5
    )
    for parameter, other in zip(model.parameters(), expected_model.parameters(), strict=True):
        assert parameter.grad is not None
        assert parameter.grad.dtype is torch.float32
        torch.testing.assert_close(parameter.grad.cpu().double(), other.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_batch_norm_with_weights_of_another_dtype_is_refused(dtype: torch.dtype) -> None:
    with flroute.enable(fallback="error", default_device=False):
        model = nn.BatchNorm1d(2).to("fl", dtype)
        with pytest.raises(RuntimeError):
            model(torch.ones(3, 2, dtype=torch.float16).to("fl"))
