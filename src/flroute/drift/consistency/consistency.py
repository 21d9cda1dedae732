"""``flroute.consistency``: one checkpoint as it is trained and as it is served, and how far the answers are apart."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch

from flroute import activation
from flroute.drift.compare.comparison import relative
from flroute.drift.compare.kept import Kept, keep
from flroute.drift.compare.observe import Subject, observe
from flroute.drift.compare.run import Run, key
from flroute.drift.compare.sides import Place, place_named, seeded
from flroute.drift.compare.trees import named_tensors
from flroute.drift.consistency.graph_layers import LayerKeeper
from flroute.drift.consistency.report import Consistency, PairDifference, Way
from flroute.drift.measures import Difference, difference
from flroute.torch_compat import aot_backend

Tensors = dict[str, Kept]
Backend = str | Callable[..., Any]


@dataclass(frozen=True)
class _Asked:
    """What each way is given: the model in evaluation mode, and where it runs."""

    subject: Subject
    where: Place
    backend: Backend | None


def consistency(
    model: torch.nn.Module,
    inputs: Any,
    device: str = "fl",
    *,
    kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    backend: Backend | None = None,
    **settings: Any,
) -> Consistency:
    """Run one checkpoint in the ways in which it is trained and served, and say how far the answers are apart.

    The model is in evaluation mode throughout. The ways are: ``training``, as a training loop evaluates it, with autograd on;
    ``inference``, under ``torch.inference_mode()``; ``compiled``, by ``torch.compile``; ``exported``, by ``torch.export``; and
    ``quantized``, the weights of linear layers and convolutions rounded to int8, one scale per output channel, and computed with in
    the model's own dtypes. A way that cannot run this model is listed with the reason.

    Args:
        model: a copy of it runs.
        inputs: as for ``compare``.
        device: vendor or device, as for ``enable``; ``"cpu"`` for the host.
        kwargs: more keyword arguments for the model.
        seed: of the random numbers, should it draw any.
        backend: of ``torch.compile``, for what is served by another one. Without it AOTAutograd's graph is run op by op, as
            ``"aot_eager"`` does, and layers can be told apart; what another backend makes has none.
        settings: of the session it runs in, as for ``enable``.

    Raises:
        Exception: what the model raises in the first way: there is nothing to compare then.

    Example:
        >>> import flroute, torch
        >>> found = flroute.consistency(torch.nn.Linear(8, 4), torch.ones(2, 8), "reference")
        >>> [way.name for way in found.ways if not way.reason], found.passed
        (['training', 'inference', 'compiled', 'exported', 'quantized'], True)
    """
    activation.activate()
    served = copy.deepcopy(model).eval()
    asked = _Asked(
        Subject(served, inputs, dict(kwargs or {}), None, False, seed, settings), place_named(device), backend
    )
    ways = [_tried(name, about, run, asked) for name, (about, run) in _ways(backend).items()]
    pairs = [_compared(x, y) for x, y in combinations([way for way in ways if not way.reason], 2)]
    return Consistency(type(model).__qualname__, asked.where.in_words, tuple(ways), tuple(pairs))


def _tried(name: str, about: str, run: Callable[[_Asked], Tensors], asked: _Asked) -> Way:
    try:
        return Way(name, about, run(asked))
    except (
        Exception
    ) as error:  # tracers and compilers raise anything: that a way cannot run the model is a finding
        if name == _FIRST:
            raise
        said = str(error).strip().partition("\n")[0]
        return Way(name, about, {}, f"{type(error).__name__}: {said}")


# -- the ways


def _training(asked: _Asked) -> Tensors:
    return _kept_in(observe(asked.subject, asked.where, ops=False))


def _inference(asked: _Asked) -> Tensors:
    return _kept_in(observe(asked.subject, asked.where, ops=False, around=torch.inference_mode))


def _kept_in(run: Run) -> Tensors:
    if run.raised is not None:
        raise run.raised
    return {name: value for name, value in run.tensors() if not name.startswith("buffer")}


def _compiled(asked: _Asked) -> Tensors:
    keeper = LayerKeeper()

    def call(model: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        return torch.compile(model, backend=asked.backend or aot_backend(keeper.run))(*args, **kwargs)

    torch.compiler.reset()  # a model like this one may have been compiled before
    try:
        with torch.no_grad():
            return _called(asked, keeper, call)
    finally:
        torch.compiler.reset()


def _exported(asked: _Asked) -> Tensors:
    keeper = LayerKeeper()

    def call(model: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        program = torch.export.export(model, args, kwargs).module()
        return keeper.run(program, (*args, *kwargs.values()))

    with torch.no_grad():
        return _called(asked, keeper, call)


def _called(asked: _Asked, keeper: LayerKeeper, call: Callable[[torch.nn.Module, Any, Any], Any]) -> Tensors:
    """What ``call`` has let a keeper keep, and what the model returns."""
    subject, where = asked.subject, asked.where
    model = where.model(subject.model)
    args, kwargs = where.inputs(subject.call())
    with seeded(subject.seed), where.running(subject.settings):
        output = call(model, args, kwargs)
    results = {
        key("result", name): kept for name, t in named_tensors(output) if (kept := keep(t)) is not None
    }
    return {**keeper.found, **results}


def _quantized(asked: _Asked) -> Tensors:
    model = copy.deepcopy(asked.subject.model)
    weighted = [module for module in model.modules() if isinstance(module, _WITH_WEIGHTS)]
    if not weighted:
        raise TypeError("it has no linear layer and no convolution whose weights could be rounded to int8")
    for module in weighted:
        _round_weight(module)
    return _training(replace(asked, subject=replace(asked.subject, model=model)))


_WITH_WEIGHTS = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)


def _round_weight(module: torch.nn.Module) -> None:
    weight: torch.Tensor = module.weight  # type: ignore[assignment]
    with torch.no_grad():
        wide = weight.detach().float()
        scale = (wide.abs().flatten(1).amax(1) / 127).clamp_min(torch.finfo(torch.float32).tiny)
        zeros = torch.zeros_like(scale, dtype=torch.int32)
        weight.copy_(torch.fake_quantize_per_channel_affine(wide, scale, zeros, 0, -127, 127))


_FIRST = "training"


def _ways(backend: Backend | None) -> dict[str, tuple[str, Callable[[_Asked], Tensors]]]:
    """What is done in each, in words, and what does it."""
    name = (
        backend if isinstance(backend, str) or backend is None else getattr(backend, "__name__", "a function")
    )
    graph = (
        "AOTAutograd's graph run op by op, as by backend 'aot_eager'" if name is None else f"backend {name!r}"
    )
    return {
        _FIRST: ("evaluation mode, autograd on", _training),
        "inference": ("torch.inference_mode()", _inference),
        "compiled": (f"torch.compile, {graph}", _compiled),
        "exported": ("torch.export", _exported),
        "quantized": (
            "weights of linear layers and convolutions rounded to int8 by output channel, computed in the model's dtypes",
            _quantized,
        ),
    }


# -- how far they are apart


def _compared(x: Way, y: Way) -> PairDifference:
    results: list[tuple[Difference, Kept | None]] = [(Difference(), None)]
    layers: list[tuple[Difference, str, int]] = []
    for name, value in x.tensors.items():
        other = y.tensors.get(name)
        if other is None or other.shape != value.shape:
            continue
        what, module, turn, _ = name.split("|")
        found = difference(value.values, other.values)
        if what == "result":
            results.append((found, value))
        elif what == "output" and module:
            layers.append((found, module, int(turn)))
    worst, of = max(reversed(results), key=lambda item: relative(item[0]))
    of_layer, layer, times = max(layers, key=lambda item: relative(item[0]), default=(Difference(), "", 0))
    allowed = "quantized" in (x.name, y.name)
    excess = 0.0 if allowed or of is None else _excess(worst, of)
    return PairDifference(x.name, y.name, worst, excess, layer, times, of_layer, len(layers))


_ROUNDINGS = 64.0
"""Units of eps, relative to the largest element, that the same ops in another order may make."""


def _excess(found: Difference, value: Kept) -> float:
    if found.is_exact:
        return 0.0
    if not value.is_floating or found.mismatched_nonfinite or not found.scale:
        return math.inf
    return found.max_abs / (_ROUNDINGS * torch.finfo(value.values.dtype).eps * found.scale)
