"""Moving a module to or from the device without replacing its Parameters.

PyTorch moves a module by ``param.data = moved`` where old and new are of one kind, and by a new Parameter where they
are not, as between host and ``fl``. A new Parameter unties tied weights and leaves existing optimizers with the old
one. Here every Parameter object stays and takes over value, ``.grad`` and ``requires_grad`` of the converted tensor.

All or nothing: an error anywhere in the tree (out of memory on the third layer) puts everything back. The price is that
the old values live until the whole tree is converted. Parameters of TorchScript modules live in C++; PyTorch replaces
them as before, and they are not put back.

An autograd graph built before the move keeps the old values and its backward pass works, but the Parameters it would
add gradients to are no longer those of the module: these gradients are lost, and a warning says so when it happens.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from flroute.device.tensors import is_on_device
from flroute.errors import DeviceError
from flroute.torch_compat import (
    carries_more_than_its_impl,
    exchange,
    plain_alias,
    replace_module_apply,
    replaceable_tensors,
)

Convert = Callable[[torch.Tensor], torch.Tensor]

_installed = False
_thread = threading.local()


def install() -> None:
    """Make module conversions that involve the device keep their Parameters; others stay as they are."""
    global _installed
    if not _installed:
        replace_module_apply(_wrap)
        _installed = True


def installed() -> bool:
    """Whether module conversions are taken care of."""
    return _installed


def _wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def apply(module: torch.nn.Module, fn: Convert, recurse: bool = True) -> Any:
        conversion: _Conversion | None = getattr(_thread, "conversion", None)
        if conversion is not None:
            return conversion.convert(module, fn, recurse)
        if isinstance(fn, _Probed):  # a child of a module that the device has nothing to do with
            return original(module, fn, recurse)
        parameters = list(module.parameters(recurse))
        if not parameters:
            return original(module, fn, recurse)
        probed = _Probed(fn, parameters)
        if not (is_on_device(probed.result) or any(map(is_on_device, parameters))):
            return original(module, probed, recurse)
        return _Conversion(original).run(module, probed, recurse)

    return apply


class _Probed:
    """A conversion of which one result is known already: where it leads can only be told by running it."""

    def __init__(self, fn: Convert, parameters: list[torch.nn.Parameter]) -> None:
        self._fn = fn
        self._first: Any = next((p for p in parameters if p.is_floating_point()), parameters[0])
        with torch.no_grad():
            self.result: Any = fn(_plain(self._first))

    def __call__(self, tensor: torch.Tensor) -> Any:
        if tensor is not self._first:
            return self._fn(tensor)
        result, self._first, self.result = self.result, None, None
        return result


class _Conversion:
    """One conversion of a tree of modules: what was changed, so that it can be taken back.

    The walk goes through every module's own ``_apply``: those that override it (RNNs, modules that keep a part on the
    host) do so here too, and find their Parameters converted when they expect it.
    """

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original
        self._moved: dict[
            int, tuple[torch.Tensor, torch.Tensor, str]
        ] = {}  # by id: Parameter, its old value, name
        self._replaced_buffers: list[tuple[dict[str, Any], str, Any]] = []

    def run(self, module: torch.nn.Module, fn: Convert, recurse: bool) -> Any:
        _thread.conversion = self
        try:
            result = module._apply(fn, recurse)
        except BaseException:  # all or nothing, whatever ended it; raised again
            self._undo()
            raise
        finally:
            _thread.conversion = None
        self._watch_old_graphs()
        return result

    def convert(self, module: torch.nn.Module, fn: Convert, recurse: bool) -> Any:
        """What ``torch.nn.Module._apply`` does, for one module."""
        tensors = replaceable_tensors(module)
        if tensors is None:
            return self._original(module, fn, recurse)
        parameters, buffers = tensors
        if recurse:
            for child in module.children():
                child._apply(fn)
        for name, parameter in parameters.items():
            if parameter is not None and id(parameter) not in self._moved:  # tied ones come up again
                self._move(parameter, fn, f"{type(module).__name__}.{name}")
        for name, buffer in buffers.items():
            if is_lazy(buffer):
                self._move(buffer, fn, f"{type(module).__name__}.{name}")
            elif buffer is not None:
                self._replaced_buffers.append((buffers, name, buffer))
                buffers[name] = fn(buffer)
        return module

    def _move(self, parameter: torch.Tensor, fn: Convert, name: str) -> None:
        with torch.no_grad():
            converted = fn(_plain(parameter))
            if converted is parameter:
                return
            value = _as_value_of(parameter, converted)
            if parameter.grad is not None:
                value.grad = fn(parameter.grad).requires_grad_(parameter.grad.requires_grad)
        try:
            exchange(parameter, value)
        except RuntimeError as error:
            raise DeviceError(
                f"{name} cannot be moved from {parameter.device} to {value.device}: something in PyTorch's C++ "
                f"refers to it (an autocast cache, a compiled graph). Move the module before it is used there. "
                f"PyTorch said: {error}"
            ) from error
        self._moved[id(parameter)] = (parameter, value, name)

    def _undo(self) -> None:
        for buffers, name, buffer in reversed(self._replaced_buffers):
            buffers[name] = buffer
        for parameter, old, _ in reversed(self._moved.values()):
            exchange(parameter, old)

    def _watch_old_graphs(self) -> None:
        warned = threading.Event()
        for parameter, old, name in self._moved.values():
            if old.requires_grad:
                old.register_hook(_warn_of_lost_gradient(name, old.device, parameter.device, warned))


def _plain(parameter: torch.Tensor) -> torch.Tensor:
    """A parameter of a lazy module as a tensor without elements: it refuses to tell its shape, which every op needs."""
    return plain_alias(parameter) if is_lazy(parameter) else parameter


def _as_value_of(parameter: torch.Tensor, converted: torch.Tensor) -> torch.Tensor:
    """A leaf of our own to exchange with: ``converted`` itself may be somebody else's."""
    with torch.inference_mode(False):
        if (
            converted.is_inference() and not parameter.is_inference()
        ):  # the module must be able to train afterwards
            converted = converted.clone()
        if carries_more_than_its_impl(parameter) or carries_more_than_its_impl(converted):
            return torch.nn.Parameter(converted, parameter.requires_grad)
        return converted.detach().requires_grad_(parameter.requires_grad)


def _warn_of_lost_gradient(
    name: str, source: torch.device, target: torch.device, warned: threading.Event
) -> Callable[[torch.Tensor], None]:
    def warn(_gradient: torch.Tensor) -> None:
        if not warned.is_set():  # one warning for a module, not one for each of its parameters
            warned.set()
            warnings.warn(
                f"a backward pass reached {name} as it was on {source}, before its module was converted (it is on "
                f"{target} now): the gradients of this pass are lost to the module. Run the forward pass again after "
                f"the conversion, or call backward() before it.",
                stacklevel=2,
            )

    return warn
