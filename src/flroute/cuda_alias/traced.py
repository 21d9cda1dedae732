"""Compiled code hears of cuda, too: what Dynamo reads while it traces is what the same line would hear if it ran.

Questions that traced code asks are put to the functions that answer running code, as if they came from the line that is
traced. In the graphs that come of it every device is the one that is meant, so that no backend hears of cuda. Calls that
stand for others (``torch.cuda.synchronize``) are left to Python, between two graphs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch

from flroute.cuda_alias.alias import current, mode_here
from flroute.cuda_alias.callers import is_own_file
from flroute.cuda_alias.facade import Facade
from flroute.cuda_alias.mode import HANDLERS, CudaMode, redirected
from flroute.cuda_alias.patches import Patch, in_force
from flroute.cuda_alias.tensor_types import CudaTensorType
from flroute.device.table import DEVICE_TYPE
from flroute.errors import FlrouteError
from flroute.torch_compat import (
    asking_line,
    call_from,
    constants_in,
    dynamo_imported_aside,
    dynamo_is_imported,
    dynamo_names_that_lack,
    function_of_node,
    guard_on_answer,
    leave_to_python,
    place_in_dynamo,
    traced_constant,
    traced_function,
)

_CONSTANT = frozenset({
    "torch.cuda.is_available", "torch.cuda.device_count", "torch.cuda.current_device", "torch.cuda.is_initialized",
    "torch.cuda.get_device_name", "torch.cuda.get_device_capability", "torch.cuda.is_bf16_supported",
    "torch.is_autocast_enabled", "torch.get_autocast_dtype", "torch.get_autocast_gpu_dtype",
    "torch.amp.is_autocast_available", "torch.amp.autocast_mode.is_autocast_available",
    "torch.backends.cuda.is_built", "torch.accelerator.current_accelerator",
    "torch.accelerator.current_device_index", "torch.accelerator.device_count",
})  # fmt: skip
"""What answers alike for as long as a guard holds: that of the alias, or Dynamo's own of autocast."""

_IS_CUDA = torch.Tensor.is_cuda.__get__  # type: ignore[attr-defined]
_STAND_INS = (Facade, CudaTensorType)
_SENT = {
    getattr(torch.Tensor, name): HANDLERS[getattr(torch.Tensor, name)]
    for name in ("to", "cuda", "type", "pin_memory", "is_pinned")
}
"""Handlers of calls that become nodes of a graph."""


def hear_of_cuda() -> None:
    """Have Dynamo hear what running code does, now or when it is imported, until cuda means nothing again."""
    if dynamo_is_imported():
        _patch_dynamo()
    else:
        in_force.enter_once("import", lambda: dynamo_imported_aside(in_force.set_aside, _patch_dynamo))


def _patch_dynamo() -> None:
    lacking = dynamo_names_that_lack()
    if lacking:
        in_force.enter_once("eager", lambda: _eagerly(f"this PyTorch has no {', '.join(lacking)}"))
    else:
        in_force.apply_once("Dynamo", _patches())


def _patches() -> Iterator[Patch]:
    for name, make in (
        ("TensorVariable.method_attr_device", _tensor_says(torch.Tensor.device.__get__, lambda t: t.device)),
        ("TensorVariable.method_attr_is_cuda", _tensor_says(_IS_CUDA, lambda _: False)),
        ("TensorVariable.call_method", _method_of_tensor),
        ("UserDefinedClassVariable.call_function", _made),
        ("BuiltinVariable.call_isinstance", _isinstance),
        ("BuiltinVariable.call_function_handler_cache", _emptied),
        ("UserFunctionVariable.call_function", _constant),
        ("SkipFunctionVariable.call_function", _constant),
        ("TorchInGraphFunctionVariable.call_function", _allowed),
        ("StreamContextVariable.enter", _entered),
        ("SymbolicTorchFunctionState.in_torch_function_mode", _among_others),
        ("TorchFunctionModeVariable.call_torch_function", _passed_on),
        ("SubgraphTracer.create_proxy", _node),
        ("OutputGraph.__init__", _guarded),
    ):
        yield Patch(*place_in_dynamo(name), make)


def _eagerly(why: str) -> Any:
    current().uses.say_once("torch.compile", f"runs eagerly while cuda means the device: {why}")
    return torch.compiler.set_stance("force_eager")


def _ask(tx: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What ``function`` answers to the line that is traced; where that is an error, the line raises it when it runs."""
    try:
        return call_from(*asking_line(tx), function, *args, **kwargs)
    except FlrouteError as error:
        leave_to_python(getattr(function, "__name__", str(function)), str(error))


def _leave(tx: Any, what: str) -> NoReturn:
    file, line = asking_line(tx)
    current().uses.say_once(
        f"{what} in compiled code", f"runs as it stands, outside of a graph ({file}:{line})"
    )
    leave_to_python(what, "while cuda means the device, it runs as it stands")


# What traced code reads ---------------------------------------------------------------------------------------------


def _tensor_says(getter: Any, truth: Callable[[Any], Any]) -> Callable[[Any], Any]:
    handle = HANDLERS[getter]

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def read(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            mode = mode_here()
            if mode is None or self.device is None or self.device.type != DEVICE_TYPE:
                return original(self, tx, *args, **kwargs)
            return traced_constant(tx, _ask(tx, handle, mode.alias, truth, (self,), {}))

        return read

    return make


_METHODS: dict[str, Callable[[Any, Any], Any]] = {
    "get_device": lambda tensor, _: tensor.device.index,
    "type": lambda _, said: said,
}
"""The truth of methods that say where a tensor is, from the tensor or from what Dynamo says."""


def _method_of_tensor(original: Any) -> Any:
    @functools.wraps(original)
    def call(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        said = original(self, tx, name, args, kwargs)
        truth, mode = _METHODS.get(name), mode_here()
        if truth is None or mode is None or args or kwargs or not said.is_python_constant():
            return said
        if self.device is None or self.device.type != DEVICE_TYPE:
            return said
        told, handle = truth(self, said.as_python_constant()), HANDLERS[getattr(torch.Tensor, name)]
        return traced_constant(tx, _ask(tx, handle, mode.alias, lambda _: told, (self,), {}))

    return call


def _made(original: Any) -> Any:
    @functools.wraps(original)
    def call(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(self.value, _STAND_INS):
            _leave(tx, f"{self.value.__name__}()")
        made = original(self, tx, args, kwargs)
        mode = mode_here()
        known = constants_in(args, kwargs)
        if mode is None or self.value is not torch.device or known is None:
            return made
        truth = made.as_python_constant()
        said = _ask(tx, HANDLERS[torch.device], mode.alias, lambda *_, **__: truth, *known)
        return traced_constant(tx, said)

    return call


def _isinstance(original: Any) -> Any:
    @functools.wraps(original)
    def call(self: Any, tx: Any, arg: Any, kinds: Any) -> Any:
        known = constants_in([kinds], {})
        if known is not None and any(isinstance(kind, _STAND_INS) for kind in _flat(known[0])):
            _leave(tx, f"isinstance of {known[0][0]}")
        return original(self, tx, arg, kinds)

    return call


def _emptied(_original: Any) -> dict[Any, Any]:
    """For a while Dynamo finds its handlers anew: those that it keeps hold the methods that were there before."""
    return {}


def _flat(kinds: Any) -> Iterator[Any]:
    if not isinstance(kinds, (list, tuple)):
        yield kinds
        return
    for kind in kinds:
        yield from _flat(kind)


def _constant(original: Any) -> Any:
    @functools.wraps(original)
    def call(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        function = traced_function(self)
        replaces = getattr(function, "replaces", None)
        if replaces is None or mode_here() is None:
            return original(self, tx, args, kwargs)
        known = constants_in(args, kwargs)
        if known is None or replaces not in _CONSTANT:
            _leave(tx, replaces)
        return traced_constant(tx, _ask(tx, function, *known[0], **known[1]))

    return call


def _allowed(original: Any) -> Any:
    """Functions of the user's that ``torch.compiler.allow_in_graph`` and its kin have backends call: these know no alias."""

    @functools.wraps(original)
    def call(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        code = getattr(inspect.unwrap(self.value), "__code__", None)
        if code is not None and mode_here() is not None and not is_own_file(code.co_filename):
            _leave(tx, f"{self.value.__module__}.{self.value.__qualname__}")
        return original(self, tx, args, kwargs)

    return call


def _entered(original: Any) -> Any:
    """A stream, whose device is the current one inside: Dynamo knows that of none."""

    @functools.wraps(original)
    def enter(self: Any, tx: Any) -> Any:
        if mode_here() is not None:
            _leave(tx, "torch.cuda.stream")
        return original(self, tx)

    return enter


# What becomes of it -------------------------------------------------------------------------------------------------


def _among_others(original: Any) -> Any:
    """Dynamo traces function modes; this one speaks through the functions of this file, alone on the stack or not."""

    @functools.wraps(original)
    def asked(self: Any) -> bool:
        return any(not isinstance(mode.value, CudaMode) for mode in self.mode_stack)

    return asked


def _passed_on(original: Any) -> Any:

    @functools.wraps(original)
    def call(self: Any, tx: Any, fn: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(self.value, CudaMode):
            return fn.call_function(tx, [*args], kwargs)
        return original(self, tx, fn, types, args, kwargs)

    return call


def _node(original: Any) -> Any:
    @functools.wraps(original)
    def create(self: Any, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **named: Any) -> Any:
        mode = mode_here()
        func = function_of_node(kind, target)

        def make(*args: Any, **kwargs: Any) -> Any:
            return original(self, kind, target, args, kwargs, *rest, **named)

        if mode is None or func is None:
            return original(self, kind, target, args, kwargs, *rest, **named)
        tx = self.output_graph.current_tx
        handle = _SENT.get(func)
        if handle is not None:
            return _ask(tx, handle, mode.alias, make, args, kwargs)
        if "device" in kwargs or "pin_memory" in kwargs:
            kwargs = _ask(tx, redirected, mode.alias, func, kwargs)
        return make(*args, **kwargs)

    return create


def _guarded(original: Any) -> Any:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        guard_on_answer(self, "flroute", "cuda_alias", "alias", "meaning")

    return init
