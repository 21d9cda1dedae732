"""Fused optimizer steps and gradient scaling, against the host's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import flroute

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": lambda p: torch.optim.Adam(p, fused=True),
    "adam with decay": lambda p: torch.optim.Adam(p, lr=0.02, weight_decay=0.1, fused=True),
    "adam amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True, betas=(0.4, 0.9), fused=True),
    "adam maximize": lambda p: torch.optim.Adam(p, maximize=True, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, fused=True),
    "adamw tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.02), amsgrad=True, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
    "sgd with decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.2, maximize=True, fused=True),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, fused=True),
    "sgd nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, fused=True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_agree_with_the_host(name: str, dtype: torch.dtype) -> None:
    numbers = torch.Generator().manual_seed(1)
    shapes = ((3, 5), (), (40_000,), (0,))  # one longer than a block, one without elements
    starts = [torch.randn(shape, generator=numbers, dtype=dtype) for shape in shapes]
    gradients = [[torch.randn(shape, generator=numbers, dtype=dtype) for shape in shapes] for _ in range(4)]
    results = []
    for device in ("cpu", "fl"):
        parameters = [torch.nn.Parameter(start.to(device, copy=True)) for start in starts]
        optimizer = OPTIMIZERS[name](parameters)
        with flroute.enable("reference", fallback="error", default_device=False) as session:
            for step in gradients:
                for parameter, gradient in zip(parameters, step, strict=True):
                    parameter.grad = gradient.to(device, copy=True)
                optimizer.step()
        results.append([p.detach().cpu() for p in parameters])
    assert any(d.op.startswith("aten::_fused_") and d.route == "native" for d in session.decisions)
    for host, device in zip(*results, strict=True):
        error = (
            2e-6 if dtype is torch.float32 else 1e-13
        )  # of parameters of about 1, some of which end near 0
        torch.testing.assert_close(device, host, rtol=error, atol=error)


def adagrad(device: str, found_inf: float, dtype: torch.dtype) -> list[torch.Tensor]:
    """One scaled step through the op itself: PyTorch's optimizer offers it on the host only."""
    numbers = torch.Generator().manual_seed(1)
    x, gradient = (torch.randn(7, generator=numbers, dtype=dtype).to(device) for _ in range(2))
    total, step = torch.full((7,), 0.1, dtype=dtype).to(device), torch.tensor(3.0).to(device)
    scale, found = torch.tensor(8.0).to(device), torch.tensor(found_inf).to(device)
    torch.ops.aten._fused_adagrad_(
        [x], [gradient], [total], [step], lr=0.1, lr_decay=0.2, weight_decay=0.3, eps=1e-8, maximize=False,
        grad_scale=scale, found_inf=found,
    )  # fmt: skip
    return [t.cpu() for t in (x, gradient, total)]


@pytest.mark.parametrize("found_inf", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adagrad_agrees_with_the_host_and_an_overflow_skips_the_step(
    found_inf: float, dtype: torch.dtype
) -> None:
    with flroute.enable("reference", fallback="error", default_device=False):
        made = adagrad("fl", found_inf, dtype)
    for device, host in zip(made, adagrad("cpu", found_inf, dtype), strict=True):
        torch.testing.assert_close(device, host)


@pytest.mark.parametrize("overflow", [False, True])
def test_scaled_steps_agree_with_the_host(overflow: bool) -> None:
    results = []
    for device in ("cpu", "fl"):
        x = torch.nn.Parameter(torch.linspace(-1, 1, 6).to(device))
        optimizer = torch.optim.AdamW([x], lr=0.1, fused=True)
        state: dict[str, Any] = {}
        with flroute.enable("reference", fallback="error", default_device=False):
            for attempt in range(3):
                x.grad = (torch.linspace(1, 2, 6) * 16).to(device)
                if overflow and attempt == 1:
                    x.grad = (x.grad / torch.zeros(6).to(device)).detach()
                optimizer.grad_scale, optimizer.found_inf = (
                    torch.tensor(16.0).to(device),
                    torch.tensor(float(overflow and attempt == 1)).to(device),
                )  # type: ignore[attr-defined]
                optimizer.step()
                state = optimizer.state[x]
        results.append([x.detach().cpu(), state["exp_avg"].cpu(), state["exp_avg_sq"].cpu()])
    for host, device in zip(*results, strict=True):
        torch.testing.assert_close(device, host)


@pytest.mark.parametrize("value", [1.0, float("inf"), float("nan")])
def test_unscaling_and_the_next_scale_agree_with_the_host(value: float) -> None:
    results = []
    for device in ("cpu", "fl"):
        gradients = [torch.tensor([2.0, value]).to(device), torch.ones(3).to(device)]
        found, scale, tracker = (torch.tensor(v).to(device) for v in (0.0, 1024.0, 1))
        tracker = tracker.to(torch.int32)
        with flroute.enable("reference", fallback="error", default_device=False):
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, 1 / scale)
            torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 2)
        results.append([t.cpu() for t in (*gradients, found, scale, tracker)])
    for host, device in zip(*results, strict=True):
        torch.testing.assert_close(device, host, equal_nan=True)


ADAM = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "amsgrad": False, "maximize": False}


def adam(
    device: str, name: str, x: torch.Tensor, step: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, ...]:
    """The parameter and the averages after a step."""
    tensors = [t.to(device, copy=True) for t in (x, x * 0.5, x.clamp(-1, 1), x.clamp(0.1, 1))]
    getattr(torch, name)(*([t] for t in tensors), [], [step.to(device)], **{**ADAM, **options})
    return tuple(t.cpu() for t in tensors)


@pytest.mark.parametrize("count", [8, 3000])  # by numpy, and where it is compiled
@pytest.mark.parametrize("name", ["_fused_adam_", "_fused_adamw_"])
@pytest.mark.parametrize(
    ("step", "options"),
    [
        (torch.tensor(0.0), {}),
        (torch.tensor(2.0), {"beta1": 1.0}),
        (torch.tensor(2.0), {"beta2": 1.5}),
        (torch.tensor(-2.0), {}),
        (torch.tensor([3.0]), {}),
    ],
    ids=["no step yet", "mean that stays", "squares that grow", "before the first", "a dimension"],
)
def test_odd_numbers_give_what_they_give_on_the_host(
    name: str, step: torch.Tensor, options: dict[str, float], count: int
) -> None:
    x = torch.linspace(0.1, 0.9, count)
    for ours, host in zip(
        *(adam(d, name, x, step, weight_decay=0.1, **options) for d in ("fl", "cpu")), strict=True
    ):
        torch.testing.assert_close(ours, host, equal_nan=True)


@pytest.mark.parametrize("count", [8, 3000])
@pytest.mark.parametrize(("name", "decay"), [("_fused_adam_", 0.0), ("_fused_adamw_", 0.1)])
def test_an_infinite_parameter_does_not_reach_the_averages(name: str, decay: float, count: int) -> None:
    def averages(device: str) -> tuple[torch.Tensor, ...]:
        x, *rest = (torch.linspace(0.1, 0.9, count).to(device) for _ in range(4))
        x[::3] = torch.inf
        lists = [[t] for t in (x, *rest)]
        getattr(torch, name)(*lists, [], [torch.tensor(3.0, device=device)], weight_decay=decay, **ADAM)
        return rest[1].cpu(), rest[2].cpu()

    for ours, host in zip(averages("fl"), averages("cpu"), strict=True):
        torch.testing.assert_close(ours, host)


@pytest.mark.parametrize("count", [8, 3000])
def test_steps_are_of_one_dtype_and_as_many_of_each(count: int) -> None:
    for device in ("cpu", "fl"):
        x, steps = torch.ones(count, device=device), [torch.tensor(1.0, device=device)]
        with pytest.raises(RuntimeError, match="expected scalar type Float but found Double"):
            torch._fused_adam_([x], [x.double()], [x + 0], [x + 0], [], steps, weight_decay=0.0, **ADAM)
        with pytest.raises(RuntimeError, match="n_tensors"):
            torch._fused_adam_([x, x + 1], [x], [x], [x], [], steps, weight_decay=0.0, **ADAM)
