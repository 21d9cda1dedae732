"""A case out of a whole model: samples go to the device, through the model, and the result comes back."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch

from flroute.benchmark.cases import Case
from flroute.benchmark.timing import Work
from flroute.errors import FlrouteError
from flroute.torch_compat import map_tensors


def model_case(name: str, model: torch.nn.Module, inputs: Any, *, train: bool = False) -> Case:
    """The case of one model, end to end.

    Args:
        name: of the case.
        model: on the host; it is copied, and the copies are measured.
        inputs: the tensor, or the tuple of arguments, on the host. The first tensor's first dimension counts samples.
        train: measure a training step, with plain SGD, in place of inference. What is minimized is the output's ``loss``
            where it has one, else the mean of every output that has a gradient.

    Raises:
        FlrouteError: there is no tensor among the inputs, or nothing to train.

    Example:
        >>> case = model_case("linear", torch.nn.Linear(8, 4), torch.ones(16, 8), train=True)
        >>> case.name, case.samples, case.make(*case.inputs())() > -10
        ('linear, training step', 16, True)
    """
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    sizes: list[int] = []
    map_tensors(lambda t: sizes.append(len(t) if t.dim() else 1), args)
    if not sizes:
        raise FlrouteError(f"{name}: there is no tensor among its inputs, so no sample to count")
    if train and not any(parameter.requires_grad for parameter in model.parameters()):
        raise FlrouteError(f"{name}: no parameter wants a gradient, so there is nothing to train")
    kind = "training step" if train else "inference"
    make = partial(_training_step if train else _inference, args)
    return Case(
        f"{name}, {kind}", lambda: (copy.deepcopy(model).train(train), torch.empty(0)), make, sizes[0]
    )


def _inference(args: Any, model: torch.nn.Module, place: torch.Tensor) -> Work:
    device = place.device  # a model without parameters is on none

    def work() -> Any:
        with torch.no_grad():
            output = model(*map_tensors(lambda t: t.to(device), args))
        return map_tensors(lambda t: t.cpu(), output)

    return work


def _training_step(args: Any, model: torch.nn.Module, place: torch.Tensor) -> Work:
    device = place.device
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-6)

    def work() -> float:
        optimizer.zero_grad()
        with torch.enable_grad():
            loss = _loss(model(*map_tensors(lambda t: t.to(device), args)))
            loss.backward()
        optimizer.step()
        return loss.item()

    return work


def _loss(output: Any) -> torch.Tensor:
    loss = getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    means: list[torch.Tensor] = []
    map_tensors(lambda t: means.append(t.mean()) if t.requires_grad else None, output)
    if not means:
        raise ValueError("no output of the model has a gradient")
    return torch.stack(means).sum()
