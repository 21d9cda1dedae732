"""Forward-mode AD, and hooks of modules: natively on the device, the host as the judge."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwad
from torch import nn

import flroute

REFERENCE, HOST = flroute.device("reference"), torch.device("cpu")


def net(device: torch.device) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4, device="cpu"), nn.Tanh(), nn.Linear(4, 2, device="cpu")).to(device)


def inputs(device: torch.device) -> torch.Tensor:
    return torch.linspace(-1, 1, 6, device="cpu").reshape(2, 3).to(device)


def dual_numbers(device: torch.device) -> list[torch.Tensor]:
    with fwad.dual_level():
        made = net(device)(fwad.make_dual(inputs(device), torch.ones_like(inputs(device))))
        return list(fwad.unpack_dual(made))


def jvp_of_parameters(device: torch.device) -> list[torch.Tensor]:
    model = net(device)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    tangents = {name: torch.ones_like(p) for name, p in parameters.items()}

    def loss(given: Any) -> torch.Tensor:
        return torch.func.functional_call(model, given, (inputs(device),)).pow(2).sum()

    return list(torch.func.jvp(loss, (parameters,), (tangents,)))


def linearized(device: torch.device) -> list[torch.Tensor]:
    value, derivative = torch.func.linearize(net(device), inputs(device))
    return [value, derivative(torch.ones_like(inputs(device)))]


def forward_over_reverse(device: torch.device) -> list[torch.Tensor]:
    model = net(device)
    gradient = torch.func.grad(lambda x: model(x).sin().sum())
    return list(torch.func.jvp(gradient, (inputs(device),), (torch.ones_like(inputs(device)),)))


def gradients_of_each_sample(device: torch.device) -> list[torch.Tensor]:
    model = net(device)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(given: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, given, (x,)).pow(2).sum()

    return list(torch.vmap(torch.func.grad(loss), (None, 0))(parameters, inputs(device)).values())


def module_hooks(device: torch.device) -> list[torch.Tensor]:
    model, x = net(device), inputs(device).requires_grad_()
    seen: list[torch.Tensor] = []
    handles = [
        model[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
        model[1].register_forward_hook(lambda module, args, out: out + 1),
        model[2].register_forward_hook(
            lambda module, args, kwargs, out: seen.append(out.detach()), with_kwargs=True
        ),
        model[2].register_full_backward_pre_hook(lambda module, grads: (grads[0] * 3,)),
        model[0].register_full_backward_hook(
            lambda module, into, out: seen.extend((into[0].clone(), out[0].clone()))
        ),
    ]
    model(x).sum().backward()
    for handle in handles:
        handle.remove()
    count = len(seen)
    model(x).sum().backward()
    assert len(seen) == count == 3
    return [*seen, x.grad, *(p.grad for p in model.parameters())]


def multi_grad_hook(device: torch.device) -> list[torch.Tensor]:
    a, b = inputs(device).requires_grad_(), inputs(device).requires_grad_()
    seen: list[torch.Tensor] = []
    handle = torch.autograd.graph.register_multi_grad_hook(
        (a, b), lambda grads: seen.extend(g.clone() for g in grads)
    )
    (a.exp() * b).sum().backward()
    handle.remove()
    assert len(seen) == 2
    return seen


TASKS = [
    dual_numbers, jvp_of_parameters, linearized, forward_over_reverse, gradients_of_each_sample, module_hooks, multi_grad_hook,
]  # fmt: skip


@pytest.mark.parametrize("where", ["outside", "session"])
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_like_on_the_host(task: Callable[[torch.device], list[torch.Tensor]], where: str) -> None:
    expected = task(HOST)
    context = (
        flroute.enable(REFERENCE, fallback="error", default_device=False)
        if where == "session"
        else nullcontext()
    )
    with context as running:
        actual = task(REFERENCE)
    assert all(result.device == REFERENCE for result in actual)
    torch.testing.assert_close([result.detach().cpu() for result in actual], [r.detach() for r in expected])
    if running is not None:
        assert running.fallbacks == []
