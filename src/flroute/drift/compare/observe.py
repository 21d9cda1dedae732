"""Running a model once, somewhere, and keeping what is to be compared."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from flroute import activation
from flroute.device import guard
from flroute.drift.compare.kept import keep, on_host
from flroute.drift.compare.run import Origin, Run, Tensors
from flroute.drift.compare.sides import Place, place_named, seeded
from flroute.drift.compare.trees import named_tensors
from flroute.drift.compare.watcher import Watcher
from flroute.drift.host_values import bytes_of
from flroute.routing.node_modules import marked
from flroute.vocabulary import Phase

Loss = Callable[[Any], torch.Tensor]


@dataclass(frozen=True)
class Subject:
    """What is run.

    Attributes:
        model: stays as it is: a copy runs.
        inputs: a tensor, a tuple of arguments, or a dictionary of keyword arguments.
        kwargs: more keyword arguments.
        loss: makes of the model's output the number whose gradients are compared.
        backward: whether there is a backward pass.
        seed: of the random numbers.
        settings: of the sessions it runs in.
    """

    model: torch.nn.Module
    inputs: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    loss: Loss | None = None
    backward: bool = True
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments and keyword arguments of the call."""
        if isinstance(self.inputs, Mapping):
            return (), {**self.inputs, **self.kwargs}
        return (self.inputs if isinstance(self.inputs, tuple) else (self.inputs,)), dict(self.kwargs)


def observe(
    subject: Subject,
    place: str | Place,
    *,
    ops: bool = True,
    judged: bool | None = None,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Run:
    """Run a model once and keep what is to be compared.

    Args:
        subject: what is run.
        place: where.
        ops: whether to see each op; else only modules, and what the run ends with.
        judged: whether the host repeats each op in float64; if absent, on devices.
        around: the context in which the model is called.
    """
    activation.activate()
    where = place_named(place) if isinstance(place, str) else place
    run = Run(_origin(subject, where))
    model = where.model(subject.model)
    args, kwargs = where.inputs(subject.call())
    judge_it = where.device is not None if judged is None else judged
    with seeded(subject.seed), where.running(subject.settings) as settings, marked():
        watcher = Watcher(model, run, where.device, settings, ops=ops, judged=judge_it)
        try:
            _pass(subject, where, model, args, kwargs, watcher, run, around)
        except Exception as error:  # the model's own error is a result: it may be raised on one side only
            if _is_ours(error):
                raise
            run.error = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            run.raised, run.raised_in = error, (watcher.last_module, watcher.phase)
    _keep_ends(run, model, (args, kwargs))
    if where.device is not None and subject.backward and ops and not guard.installed():
        run.remarks.append(
            "ops of the backward pass cannot be seen with this PyTorch: no mode is active there"
        )
    return run


def _is_ours(error: BaseException) -> bool:
    """Whether it was raised by what watches the model, and not by the model."""
    frames = traceback.extract_tb(error.__traceback__)
    return Path(frames[-1].filename).parent == Path(__file__).parent


def _pass(
    subject: Subject,
    where: Place,
    model: torch.nn.Module,
    args: Any,
    kwargs: Any,
    watcher: Watcher,
    run: Run,
    around: Callable[[], AbstractContextManager[Any]],
) -> None:
    with around(), watcher.watching(Phase.FORWARD):
        output = model(*args, **kwargs)
        roots = _roots(output if subject.loss is None else subject.loss(output))
    run.outputs = [(name, kept) for name, t in named_tensors(output) if (kept := keep(t)) is not None]
    if not subject.backward:
        return
    if not roots:
        run.remarks.append("no output has a gradient: there was no backward pass")
        return
    gradients = [where.moved(_start(root)) for root in roots]
    with watcher.watching(Phase.BACKWARD):
        torch.autograd.backward(roots, gradients)


def _roots(output: Any) -> list[torch.Tensor]:
    found = {id(t): t for _, t in named_tensors(output) if t.requires_grad and t.is_floating_point()}
    return list(found.values())


def _start(root: torch.Tensor) -> torch.Tensor:
    """The gradient a backward pass starts from: as if the loss were the sum of cos(i) times the i-th element of each output.

    A plain sum would not do: behind a softmax or a normalization its gradient is zero.
    """
    steps = torch.arange(root.numel(), dtype=torch.float64, device="cpu")
    return steps.cos().reshape(root.shape).to(root.dtype)


def _keep_ends(run: Run, model: torch.nn.Module, inputs: Any) -> None:
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    of_inputs = {name: t.grad for name, t in named_tensors(inputs) if t.is_leaf and t.grad is not None}
    for what, tensors in (
        ("gradient of parameter", gradients),
        ("gradient of input", of_inputs),
        ("buffer", dict(model.named_buffers())),
    ):
        values = {name: kept for name, tensor in tensors.items() if (kept := keep(tensor)) is not None}
        run.ends.append(Tensors(what, values))
    run.ends.insert(0, Tensors("result", dict(run.outputs)))


def _origin(subject: Subject, where: Place) -> Origin:
    model = subject.model
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return Origin(
        place=where.name,
        device=where.in_words,
        flroute=version("flroute"),
        torch=torch.__version__,
        model=type(model).__qualname__,
        modules={name: type(module).__name__ for name, module in model.named_modules()},
        parameters={name: _signature(t) for name, t in tensors},
        checkpoint=_digest(*(t for _, t in tensors)),
        inputs={name: f"{_signature(t)} {_digest(t)}" for name, t in named_tensors(subject.call())},
        seed=subject.seed,
        training=model.training,
        backward=subject.backward,
    )


def _signature(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _digest(*tensors: torch.Tensor) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        host = on_host(tensor)
        if host is not None:
            found.update(bytes_of(host).numpy().data)
    return found.hexdigest()[:16]
