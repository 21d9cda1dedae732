"""Watching one run: each op that computes, each module's outputs and their gradients."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from flroute.device.table import Device
from flroute.drift.compare.kept import KEPT_WHOLE_OF_OP, Kept, keep
from flroute.drift.compare.local import JudgedCall, Judgement, makes_room
from flroute.drift.compare.run import LayerCall, OpCall, Run
from flroute.drift.compare.trees import named_tensors
from flroute.routing.composites import split_of
from flroute.routing.forecast import forecast
from flroute.routing.node_modules import mark_of_current_node
from flroute.routing.schema import OpFacts, facts_of, written_tensors
from flroute.settings import Settings
from flroute.torch_compat import TorchDispatchMode, is_overload, map_tensors
from flroute.vocabulary import Phase, Route

QUIET = frozenset({
    "aten::_to_copy", "aten::arange", "aten::clone", "aten::contiguous", "aten::copy_", "aten::detach", "aten::fill_", "aten::full",
    "aten::full_like", "aten::lift_fresh", "aten::new_full", "aten::new_ones", "aten::new_zeros", "aten::ones",
    "aten::ones_like", "aten::scalar_tensor", "aten::zero_", "aten::zeros", "aten::zeros_like",
})  # fmt: skip
"""Ops that move or make tensors: implementations differ in how many of them they need."""

_READS = {torch.Tag.data_dependent_output: "values", torch.Tag.dynamic_output_shape: "shape"}


def is_quiet(op: str) -> bool:
    """Whether an op moves or makes tensors, and computes nothing."""
    return op.partition(".")[0] in QUIET


class Watcher(TorchDispatchMode):
    """Sees each op above the level at which it is routed, and fills a run.

    Args:
        model: whose modules are told apart.
        run: to be filled.
        device: where it runs, if flroute routes it.
        settings: of the session it runs in.
        ops: whether to see ops, not only modules.
        judged: repeat each call on the host.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        run: Run,
        device: Device | None,
        settings: Settings | None,
        *,
        ops: bool,
        judged: bool,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._run, self._device, self._settings, self._judged = run, device, settings, judged
        self._ops = ops
        self._layers = _Layers(model, run)
        self.phase = Phase.FORWARD
        self._part_of = ("", 0)

    @contextmanager
    def watching(self, phase: Phase) -> Iterator[None]:
        """Inside, what is called belongs to ``phase``."""
        self.phase = phase
        with self._layers, self if self._ops else nullcontext():
            yield

    @property
    def last_module(self) -> str:
        """Where an error was raised: in the forward pass the innermost module that it left."""
        if self.phase is Phase.FORWARD:
            return self._layers.interrupted or ""
        return self._run.ops[-1].module if self._run.ops else ""

    @property
    def place(self) -> tuple[str, int]:
        """The module that is under way, or in which what the backward pass computes was called, and its turn."""
        if self.phase is Phase.FORWARD:
            return self._layers.current
        mark = mark_of_current_node()
        return (mark.path_in_root if mark is not None else "", 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if types or not is_overload(func) or func.namespace != "aten":
            return func(*args, **kwargs)
        facts = facts_of(func)
        if facts.is_metadata or makes_room(facts):
            return func(*args, **kwargs)
        split = self._split(facts, args, kwargs)
        if split is not None:
            return self._run_parts(facts, split, args, kwargs)
        vendor = self._device.vendor if self._device is not None else ""
        call = JudgedCall(facts, args, kwargs, vendor) if self._judged else None
        stream = torch.get_rng_state() if facts.is_seeded else None
        result = func(*args, **kwargs)
        drew = stream is not None and not torch.equal(stream, torch.get_rng_state())
        judgement = call.judge(result) if call is not None else Judgement(None)
        self._record(facts, args, kwargs, result, judgement, drew=drew)
        return result

    def _run_parts(self, facts: OpFacts, split: Any, args: Any, kwargs: Any) -> Any:
        outermost = not self._part_of[0]
        if outermost:
            self._part_of = (facts.name, len(self._run.ops))
        try:
            with self:
                return split(args, kwargs)
        finally:
            if outermost:
                self._part_of = ("", 0)

    def _split(self, facts: OpFacts, args: Any, kwargs: Any) -> Any:
        """What makes other ops of this one, where the router would: these are what kernels compute."""
        if self._device is None or self._settings is None:
            return None
        where = forecast(self._settings, facts, self._device, args, kwargs)
        return split_of(facts, self._device.vendor) if where.route is Route.DECOMPOSED else None

    def _record(
        self, facts: OpFacts, args: Any, kwargs: Any, result: Any, judgement: Judgement, *, drew: bool
    ) -> None:
        results: list[Kept] = []

        def note(tensor: torch.Tensor) -> None:
            kept = keep(tensor, KEPT_WHOLE_OF_OP)
            if kept is not None:
                results.append(kept)

        if isinstance(result, bool | int | float | complex):
            note(torch.tensor(result, device="cpu"))
        returned: dict[int, torch.Tensor] = {}
        map_tensors(lambda t: returned.setdefault(id(t), t), (result, written_tensors(facts, args, kwargs)))
        for tensor in returned.values():
            note(tensor)
        module, turn = self.place
        self._run.ops.append(
            OpCall(
                facts.name, module, turn, self.phase, tuple(results), judgement.local, judgement.unjudged,
                seeded=drew,
                reads=next((what for tag, what in _READS.items() if tag in facts.op.tags), ""),
                part_of=self._part_of,
                loose=judgement.loose,
                quiet=is_quiet(facts.name),
            )
        )  # fmt: skip


class _Layers:
    """Hooks on the modules of a model: which is under way, what it returns, and what gradient that gets.

    Gradients are seen by hooks on the tensors: those on modules put nodes of their own into the graph.
    """

    def __init__(self, model: torch.nn.Module, run: Run) -> None:
        self._names = {module: name for name, module in model.named_modules()}
        self._run = run
        self._turns: Counter[str] = Counter()
        self._stack: list[LayerCall] = []
        self._undo = ExitStack()
        self._handled: BaseException | None = None  # by whoever called us: none of ours
        self.interrupted: str | None = None

    @property
    def current(self) -> tuple[str, int]:
        """The path of the module under way, and its turn."""
        return (self._stack[-1].module, self._stack[-1].turn) if self._stack else ("", 0)

    def __enter__(self) -> None:
        self._handled = sys.exc_info()[1]
        for module, name in self._names.items():
            self._undo.callback(module.register_forward_pre_hook(partial(self._entered, name)).remove)
            self._undo.callback(module.register_forward_hook(self._left, always_call=True).remove)

    def __exit__(self, *exc: object) -> None:
        self._undo.close()
        self._stack.clear()

    def _entered(self, name: str, module: torch.nn.Module, args: Any) -> None:
        layer = LayerCall(name, type(module).__name__, self._turns[name])
        self._turns[name] += 1
        self._stack.append(layer)

    def _left(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if not self._stack:
            return
        layer = self._stack.pop()
        layer.ended = len(self._run.ops)
        self._run.layers.append(layer)
        if self.interrupted is None and sys.exc_info()[1] is not self._handled:
            self.interrupted = layer.module
        for at, (_, tensor) in enumerate(named_tensors(output)):
            layer.outputs.append(keep(tensor))
            layer.gradients.append(None)
            if tensor.requires_grad:
                tensor.register_hook(partial(_keep_gradient, layer, at))


def _keep_gradient(layer: LayerCall, at: int, gradient: torch.Tensor) -> None:
    layer.gradients[at] = keep(gradient)
