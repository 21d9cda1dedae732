"""The dispatch mode of a session: it sees every aten call of one thread first."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch

from flroute.device.tensors import is_on_device
from flroute.routing.router import Router
from flroute.torch_compat import (
    BareDispatchMode,
    dispatch_stack_length,
    function_stack_length,
    increment_versions,
    is_overload,
    on_top_of_dispatch_stack,
    outside_dispatch_modes,
    without_function_modes,
    wrap_backward,
)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.modes: list[RoutingMode] = []


_thread = _Thread()


def innermost_router() -> Router | None:
    """The router of the innermost session that is in force in this thread."""
    modes = _thread.modes
    return modes[-1].router if modes else None


class RoutingMode(BareDispatchMode):
    """Sees every aten call of one thread first, and hands it to the session's router."""

    def __init__(self, router: Router) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.router = router
        self._handlers: dict[Any, Any] = router.mode_table
        self._depth = 0  # modes beneath us on the stack
        self._beneath = -1  # the same while we route

    def __enter__(self) -> RoutingMode:  # noqa: PYI034 -- typing.Self needs Python 3.11
        self._depth = dispatch_stack_length()
        super().__enter__()  # type: ignore[no-untyped-call]
        _thread.modes.append(self)
        _let_innermost_route(_thread.modes)
        return self

    def __exit__(self, *exc: object) -> None:
        modes = _thread.modes
        at = modes.index(self)
        del modes[at]
        self._beneath = -1  # whoever holds the stack while we leave it may put us back
        for inner in modes[at:]:  # opened after us, and still open
            inner._depth -= 1
        _let_innermost_route(modes)
        with on_top_of_dispatch_stack(self):
            super().__exit__(*exc)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Other subclasses (fake, functional, ...) are not ours; nor is a call under an infrastructure mode, which sits
        # beneath us on the stack and must see factories before they allocate.
        if types or dispatch_stack_length() != self._beneath:
            return func(*args, **(kwargs or {}))
        handler = self._handlers.get(func)
        if handler is None:
            handler = self._handlers[func] = self._handler(func)
        return handler(args, kwargs)

    def _handler(self, func: Any) -> Any:
        if not is_overload(func) or func.namespace != "aten":
            return lambda args, kwargs: func(*args, **kwargs)
        handler = self.router.handler(func)
        if self.router.settings.alias:
            handler = _unseen_by_function_modes(handler)
        if self.router.bumps_no_version(func):
            return lambda args, kwargs: increment_versions(args[0], handler(args, kwargs))
        return handler


def _unseen_by_function_modes(handler: Any) -> Any:
    """In a backward pass the alias of cuda is in force for the user's code that it calls, and is none of a kernel's business."""

    def handle(args: Any, kwargs: Any) -> Any:
        if not function_stack_length():
            return handler(args, kwargs)
        with without_function_modes():
            return handler(args, kwargs)

    return handle


def _let_innermost_route(modes: list[RoutingMode]) -> None:
    """Of one thread's sessions the innermost routes, the others pass each call on.

    So does it where modes of the user's are beneath it: they want to see calls on the device, too, and the kernels
    registered with PyTorch route these.
    """
    for at, mode in enumerate(modes):
        routes = at == len(modes) - 1 and mode._depth == at
        mode._beneath = mode._depth if routes else -1


@cache
def lift_modes_in_backward() -> None:
    """Where PyTorch's device guard could not be patched: no dispatch mode is active while autograd runs over the device.

    An error that leaves a mode inside the autograd engine would end the process (device/guard.py); one that leaves a
    kernel registered with PyTorch does not, and there the same router decides. A pass that starts on the host, with no
    session in this thread, is the host's own: the user's modes see it.
    """

    def around(roots: Any) -> AbstractContextManager[Any]:
        of_host = all(isinstance(root, torch.Tensor) and not is_on_device(root) for root in roots)
        return nullcontext() if of_host and not _thread.modes else outside_dispatch_modes()

    wrap_backward(around)
