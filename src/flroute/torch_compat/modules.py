"""Modules and parameters: conversions that keep Python objects, and what is chosen by device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

MODULE_CALL = torch.nn.Module._call_impl.__code__
"""The frame of each module's call; its first local is the module."""
swap_tensor_impl = torch._C._swap_tensor_impl


def replace_module_apply(make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put ``make(original)`` in the place of ``torch.nn.Module._apply``, through which every conversion goes."""
    torch.nn.Module._apply = make(torch.nn.Module._apply)  # type: ignore[method-assign]


def replaceable_tensors(module: torch.nn.Module) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """A module's own parameters and buffers, by name; ``None`` if they live in C++ (TorchScript, C++ modules)."""
    parameters, buffers = module._parameters, module._buffers
    return (parameters, buffers) if isinstance(parameters, dict) else None


def carries_more_than_its_impl(tensor: torch.Tensor) -> bool:
    """Whether a tensor's Python half belongs to its value: wrapper subclasses and fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    return isinstance(tensor, FakeTensor) or is_traceable_wrapper_subclass(tensor)


def exchange(parameter: torch.Tensor, other: torch.Tensor) -> None:
    """Exchange what two leaf tensors are, keeping both Python objects; the hooks stay with ``parameter``.

    Doing it twice undoes it. ``.grad`` and ``requires_grad`` travel with the value. Hooks are kept by the Python object
    (THPVariable) and registered with the C++ tensor (AutogradMeta): the setters of these two attributes do both.
    ``torch.utils.swap_tensors`` does less: it refuses weak references and living graphs, and loses the hooks.
    """
    with torch._C.DisableTorchFunction():
        hooks, late_hooks = parameter._backward_hooks, parameter._post_accumulate_grad_hooks
        whole = carries_more_than_its_impl(parameter) or carries_more_than_its_impl(other)
        swap_tensor_impl(parameter, other)
        if whole:
            _exchange_python_halves(parameter, other)
        other._backward_hooks = None
        other._post_accumulate_grad_hooks = {}  # None would leave them registered in C++
        parameter._backward_hooks, parameter._post_accumulate_grad_hooks = hooks, late_hooks


def _exchange_python_halves(one: torch.Tensor, other: torch.Tensor) -> None:
    slots = [
        name for kind in type(one).__mro__ for name in vars(kind).get("__slots__", ())
    ]  # DTensor has some
    for name in ("__class__", "__dict__", *slots):
        ours, theirs = getattr(one, name, None), getattr(other, name, None)
        setattr(one, name, theirs)
        setattr(other, name, ours)


def choose_as_on_host(device_type: str) -> None:
    """What ``torch.nn.LinearCrossEntropyOptions`` (PyTorch 2.13) leaves to PyTorch is chosen as on the host."""
    options: Any = getattr(torch.nn, "LinearCrossEntropyOptions", None)
    if (adjust := getattr(options, "_adjust", None)) is not None:

        @functools.wraps(adjust)
        def as_on_host(self: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
            known = torch.device("cpu") if device is not None and device.type == device_type else device
            return adjust(self, *args, device=known, **kwargs)

        options._adjust = as_on_host
