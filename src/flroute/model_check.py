"""``flroute.check``: what of a model a device computes natively, found before anything runs there.

The model runs once on fake tensors, forward and backward: they have shapes, dtypes and the device, and no data, so a model
of any size takes no memory. Each op it calls is asked for its route.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flroute import activation
from flroute.device.table import Device
from flroute.device_names import resolve_device
from flroute.report import counted
from flroute.routing.composites import split_of
from flroute.routing.forecast import Forecast, forecast
from flroute.routing.node_modules import mark_of_current_node, marked
from flroute.routing.schema import OpFacts, facts_of, tensors_in
from flroute.settings import Settings, load_settings
from flroute.suggestions import Call, suggestions_for
from flroute.tables import Grid, html_lines, html_part, in_text
from flroute.torch_compat import (
    TorchDispatchMode,
    fake_like,
    fake_refusals,
    fake_tensors,
    flops_of,
    is_overload,
    map_tensors,
)
from flroute.vocabulary import Reason, Route

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_COMPUTING = (Route.NATIVE, Route.FALLBACK)


@dataclass(frozen=True)
class CheckedOp:
    """Calls of one op with one signature of dtypes, and where they would go.

    Attributes:
        op: ``aten::mm``.
        route: ``native``, ``decomposed`` (its parts are rows of their own), ``fallback``, ``view`` or ``copy``.
        kernel: the kernel that would serve it.
        reason: why this route.
        detail: what the rejected candidates said.
        dtypes: of the tensors of the first call.
        shapes: likewise.
        calls: how many.
        flops: floating-point operations of all calls, as PyTorch counts them for matrix products, convolutions and
            attention; one per element of the result for other ops.
        module: where in the model it is first called, ``encoder.layer.3.attention``.
        phase: ``forward`` or ``backward``, of the first call.
        suggestions: for a fallback, what would be native in its place, or split into what is; each was tried.
    """

    op: str
    route: Route
    kernel: str | None
    reason: Reason
    detail: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    calls: int
    flops: int
    module: str
    phase: str
    suggestions: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where it is first called, in words."""
        module = self.module or "the model itself"
        return f"the backward pass of {module}" if self.phase == "backward" else module

    @property
    def advice(self) -> str:
        """What would make a fallback native; empty for other routes."""
        if self.route is not Route.FALLBACK:
            return ""
        if self.reason is Reason.NO_KERNEL:
            return f'write a kernel: @flroute.vendor.kernel("{self.op}", dtypes=({_quoted(self.dtypes)}))'
        if self.reason is Reason.DTYPE:
            return f"let a kernel take {', '.join(dict.fromkeys(self.dtypes))}, or keep these tensors in a dtype it takes"
        return f"let a kernel take these arguments: {self.detail}"


class ModelCheck:
    """What of a model is native, and what to implement next.

    Args:
        device: that was asked about.
        ops: what the model calls.
        remarks: what the check could not follow.
    """

    def __init__(self, device: str, ops: Sequence[CheckedOp], remarks: Sequence[str]) -> None:
        self.device, self.ops, self.remarks = device, tuple(ops), tuple(remarks)

    @property
    def missing(self) -> list[CheckedOp]:
        """What would fall back, the most work first: implement these next."""
        fallbacks = [op for op in self.ops if op.route is Route.FALLBACK]
        return sorted(fallbacks, key=lambda op: (-op.flops, -op.calls, op.op))

    @property
    def by_op(self) -> float:
        """Share of computing ops that are native; 1.0 for a model that computes nothing."""
        computing = {op.op for op in self.ops if op.route in _COMPUTING}
        return 1 - len({op.op for op in self.missing}) / len(computing) if computing else 1.0

    @property
    def by_flops(self) -> float:
        """Share of the floating-point operations that native kernels do."""
        total = sum(op.flops for op in self.ops if op.route in _COMPUTING)
        return 1 - sum(op.flops for op in self.missing) / total if total else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Everything, in types that JSON has."""
        return {
            "schema_version": 1,
            "device": self.device,
            "coverage_by_op": self.by_op,
            "coverage_by_flops": self.by_flops,
            "remarks": list(self.remarks),
            "ops": [
                {**asdict(op), "route": str(op.route), "reason": str(op.reason), "advice": op.advice}
                for op in self.ops
            ],
        }

    def summary(self) -> list[str]:
        """The result in lines of text."""
        calls = sum(op.calls for op in self.ops)
        flops = sum(op.flops for op in self.ops if op.route in _COMPUTING)
        shares = f"{self.by_op:.1%} of the ops that compute, {self.by_flops:.1%} of {flops:.3g} FLOP"
        lines = [f"{self.device}: {calls:,} calls of {len({op.op for op in self.ops})} ops; native: {shares}"]
        lines += [f"note: {remark}" for remark in self.remarks]
        lines.append("implement these next:" if self.missing else "nothing would fall back")
        for op in self.missing:
            lines.append(
                f"  {op.op}, {counted(op.calls, 'call')}, {op.flops:.3g} FLOP, first in {op.place}: {op.advice}"
            )
            lines += [f"    or {suggestion}" for suggestion in op.suggestions]
        return lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        table = self._grid().to_rich()
        for column in table.columns:
            column.no_wrap, column.overflow = False, "fold"
        yield table
        yield ""
        yield Text("\n".join(self.summary()))

    def __str__(self) -> str:
        return in_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """For a notebook."""
        return html_part(self._grid().to_html(), html_lines(self.summary()))

    def _grid(self) -> Grid:
        ops = sorted(self.ops, key=lambda op: -op.flops)
        rows = [
            (op.op, ", ".join(dict.fromkeys(op.dtypes)), str(op.route), op.kernel or "",
             f"{op.calls:,}", f"{op.flops:.3g}", op.module)
            for op in ops
        ]  # fmt: skip
        columns = ("op", "dtypes", "route", "kernel", "calls", "FLOP", "first in")
        return Grid(columns, rows, [op.route for op in ops], frozenset({"calls", "FLOP"}))


def check(
    model: torch.nn.Module,
    inputs: Any,
    device: str | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    backward: bool = True,
    **settings: Any,
) -> ModelCheck:
    """Find out which ops of a model a device would compute natively, before anything runs there.

    Args:
        model: on any device, ``meta`` included. Its parameters are neither read nor moved.
        inputs: the tensor, or the tuple of arguments, that the model is called with.
        device: vendor or device, as for ``enable``.
        kwargs: keyword arguments for the model.
        backward: whether to check the backward pass, too, from all outputs that have a gradient.
        settings: of the session it is to run in, as for ``enable``.

    Returns:
        The ops with their routes, coverage by op and by FLOPs, and what would fall back.

    Raises:
        UnknownVendorError, DeviceError: as for ``enable``.

    Example:
        >>> import flroute, torch
        >>> found = flroute.check(torch.nn.Linear(8, 4, device="meta"), torch.ones(2, 8), device="reference")
        >>> found.by_flops, found.missing
        (1.0, [])
    """
    activation.activate()
    there = resolve_device(device)
    recorder = _Recorder(model, there, load_settings(**settings))
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    with fake_tensors() as mode, marked():

        def to_fake(value: torch.Tensor) -> torch.Tensor:
            return fake_like(value, mode, there.torch_device)

        state = {name: to_fake(t) for name, t in [*model.named_parameters(), *model.named_buffers()]}
        fakes, named = map_tensors(to_fake, (args, dict(kwargs or {})))
        with recorder.recording("forward"):
            output = torch.func.functional_call(model, state, fakes, named)
        if backward and not recorder.remarks:
            roots = _with_gradient(output)
            gradients = [torch.ones_like(root) for root in roots]
            if not roots:
                recorder.remarks.append("no output has a gradient: the backward pass was not checked")
            with recorder.recording("backward"):
                torch.autograd.backward(roots, gradients)
    return ModelCheck(there.name, list(recorder.ops.values()), recorder.remarks)


def _with_gradient(output: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    map_tensors(lambda t: found.append(t) if t.requires_grad else None, output)
    return found


class _Recorder(TorchDispatchMode):
    """Sees each op on its way to the fake tensors, at the level where a session would route it."""

    def __init__(self, model: torch.nn.Module, device: Device, settings: Settings) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device, self._settings = device, settings
        self._phase = "forward"
        self._modules = _ModuleNames(model)
        self.ops: dict[Any, CheckedOp] = {}
        self.remarks: list[str] = []

    @contextmanager
    def recording(self, phase: str) -> Iterator[None]:
        """Record what is called; what fake tensors cannot follow ends the phase, and becomes a remark."""
        self._phase = phase
        try:
            with self._modules, torch.device(self._device.torch_device), self:
                yield
        except fake_refusals() as error:
            why = str(error).splitlines()[0]
            where = _user_line(error)
            self.remarks.append(
                f"the {phase} pass was followed up to {self._modules.current or 'the model'}{where}: what comes next depends on "
                f"data ({type(error).__name__}: {why})"
            )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not is_overload(func) or func.namespace != "aten":
            return func(*args, **kwargs)
        facts = facts_of(func)
        where = forecast(self._settings, facts, self._device, args, kwargs)
        split = split_of(facts, self._device.vendor) if where.route is Route.DECOMPOSED else None
        if split is None:
            result = func(*args, **kwargs)
        else:
            with self:
                result = split(args, kwargs)
        self._count(facts, where, args, kwargs, result)
        return result

    def _count(self, facts: OpFacts, where: Forecast, args: Any, kwargs: Any, result: Any) -> None:
        tensors = tensors_in(args, kwargs)
        dtypes = tuple(str(t.dtype).removeprefix("torch.") for t in tensors)
        key = (facts.name, where.route, where.kernel, where.reason, dtypes)
        flops = flops_of(facts.op, args, kwargs, result) if where.route in _COMPUTING else 0
        known = self.ops.get(key)
        if known is not None:
            self.ops[key] = replace(known, calls=known.calls + 1, flops=known.flops + flops)
            return
        shapes = tuple(tuple(t.shape) for t in tensors)
        fallback = where.route is Route.FALLBACK
        call = Call(self._settings, self._device, facts, args, kwargs)
        self.ops[key] = CheckedOp(
            facts.name, where.route, where.kernel, where.reason, where.detail, dtypes, shapes, 1, flops,
            self._module, self._phase, suggestions_for(call) if fallback else (),
        )  # fmt: skip

    @property
    def _module(self) -> str:
        """Where in the model the call is made, or the forward call that it belongs to."""
        if self._phase == "forward":
            return self._modules.current
        mark = mark_of_current_node()
        return mark.path_in_root if mark is not None else ""


class _ModuleNames:
    """The innermost module whose forward is running."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._names = {module: name for name, module in model.named_modules()}
        self._stack: list[str] = []
        self._handles: list[Any] = []

    @property
    def current(self) -> str:
        """Its name in the model, ``encoder.layer.3``; empty for the model itself."""
        return self._stack[-1] if self._stack else ""

    def __enter__(self) -> None:
        self._stack.clear()
        for module, name in self._names.items():
            self._handles.append(
                module.register_forward_pre_hook(lambda *_, name=name: self._stack.append(name))
            )
            self._handles.append(module.register_forward_hook(lambda *_: self._leave()))

    def _leave(self) -> None:
        self._stack.pop()

    def __exit__(self, *exc: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _user_line(error: BaseException) -> str:
    """Where in code outside PyTorch and flroute it happened."""
    own = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(own)]
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _quoted(dtypes: Sequence[str]) -> str:
    return "".join(f'"{dtype}", ' for dtype in dict.fromkeys(dtypes)).rstrip()
