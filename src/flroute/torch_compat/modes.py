"""The stacks of modes: what is on them, and how to leave in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode

dispatch_stack_length = torch._C._len_torch_dispatch_stack
function_stack_length = torch._C._len_torch_function_stack


class LeftInAnyOrder(TorchFunctionMode):
    """A function mode that goes on top of the modes there are, and may be left before those on top of it."""

    def __enter__(self) -> None:
        torch._C._push_on_torch_function_stack(self)

    def __exit__(self, *exc: object) -> None:
        for other in reversed(_pop_down_to(self, function_stack_length, torch._C._pop_torch_function_stack)):
            torch._C._push_on_torch_function_stack(other)

    def is_in_force(self) -> bool:
        """Whether it is on this thread's stack: not while it handles a call."""
        return any(torch._C._get_function_stack_at(at) is self for at in range(function_stack_length()))


class DefaultDevice(LeftInAnyOrder, DeviceContext):
    """``with torch.device(...)``, but functions that make no tensor pass through it at two thirds of its cost."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _device_constructors():
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        return func(*args, **kwargs) if kwargs else func(*args)


@contextmanager
def default_device_kept() -> Iterator[None]:
    """What this thread says meanwhile with ``torch.set_default_device`` is undone at the end."""
    before = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    try:
        yield
    finally:
        if getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None) is not before:
            torch.set_default_device(None if before is None else before.device)


class BareDispatchMode(TorchDispatchMode):
    """A dispatch mode that Dynamo neither wraps nor traces into, and that calls made by a compiler do not turn off."""

    supports_higher_order_operators = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)  # type: ignore[no-untyped-call]
        skip_in_dynamo(cls.__torch_dispatch__)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Else ``torch.compile`` under the mode would silently run eager."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Do not wrap ``__torch_dispatch__``: its wrapper imports Dynamo and costs a third of a call."""
        return False


def outside_dispatch_modes() -> Any:
    """A context without any dispatch mode."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def without_function_modes() -> Any:
    """A context in which no function mode sees a call, nor any subclass of tensors."""
    return torch._C.DisableTorchFunction()


def _pop_down_to(mode: Any, length: Callable[[], int], pop: Callable[[], Any]) -> list[Any]:
    above = []
    while length() and (top := pop()) is not mode:
        above.append(top)
    return above


@contextmanager
def on_top_of_dispatch_stack(mode: TorchDispatchMode) -> Iterator[None]:
    """Inside, no other dispatch mode is above ``mode``: leaving a mode takes the topmost one off the stack."""
    push = torch._C._push_on_torch_dispatch_stack
    above = _pop_down_to(mode, dispatch_stack_length, lambda: torch._C._pop_torch_dispatch_stack(None))
    push(mode)
    try:
        yield
    finally:
        for other in reversed(above):
            push(other)


def skip_in_dynamo(function: Callable[..., Any]) -> None:
    """Keep Dynamo out of ``function`` and of all it calls, without importing Dynamo and without a wrapper per call."""
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    frames.set_code_exec_strategy(function.__code__, skip)


@contextmanager
def above_in_dispatch_stack(depth: int) -> Iterator[None]:
    """Inside, no more than ``depth`` dispatch modes are on the stack; those above come back on top of what is pushed meanwhile."""
    pop, push = torch._C._pop_torch_dispatch_stack, torch._C._push_on_torch_dispatch_stack
    above = [pop(None) for _ in range(dispatch_stack_length() - depth)]
    try:
        yield
    finally:
        for other in reversed(above):
            push(other)


def not_traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which Dynamo now leaves to Python; ``torch.compiler.disable`` would import Dynamo, and wrap it."""
    skip_in_dynamo(function)
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function
