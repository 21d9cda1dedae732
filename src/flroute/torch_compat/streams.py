"""Streams and events by device, and ``torch.accelerator``: what PyTorch's C++ answers for backends of its own only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from flroute.torch_compat.device_slot import PRIVATEUSE1

PlainStream = torch.Stream
"""The type in C++, whatever ``torch.Stream`` is replaced with."""
PlainEvent = torch.Event
"""Likewise."""

ACCELERATOR_PREFIX = "_accelerator_"
"""What the functions in ``torch._C`` behind ``torch.accelerator`` begin with."""


def accelerator_functions() -> tuple[str, ...]:
    """Those this PyTorch has, without the prefix."""
    return tuple(
        name.removeprefix(ACCELERATOR_PREFIX) for name in dir(torch._C) if name.startswith(ACCELERATOR_PREFIX)
    )


def answer_for_accelerator(answers: Mapping[str, Callable[..., Any]]) -> None:
    """Have ``torch.accelerator`` ask these; what this PyTorch does not have is left out."""
    for name in accelerator_functions():
        if name in answers:
            setattr(torch._C, ACCELERATOR_PREFIX + name, answers[name])


def make_by_device(
    plain: type, ours: Callable[..., Any], means_ours: Callable[[Any, Mapping[str, Any]], bool]
) -> type:
    """A stand-in for ``torch.Stream`` or ``torch.Event``: of our device it makes ``ours``, of others ``plain``.

    Args:
        plain: the type in C++, which cannot be changed itself.
        ours: makes one of our own, of the same arguments.
        means_ours: says by the ``device`` argument and by keywords which.
    """

    class ByDevice(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if cls is not stand_in:
                return super().__call__(*args, **kwargs)
            device = args[0] if args else kwargs.get("device")
            return (ours if means_ours(device, kwargs) else plain)(*args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, plain) if cls is stand_in else super().__instancecheck__(instance)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, plain) if cls is stand_in else super().__subclasscheck__(subclass)

    stand_in = ByDevice(plain.__name__, (plain,), {"__doc__": plain.__doc__, "__module__": "torch"})
    return stand_in


def replace_streams_and_events(
    stream: Callable[..., Any], event: Callable[..., Any], device_type: str
) -> None:
    """Let ``torch.Stream`` and ``torch.Event`` make ours for ``device_type``, which is the accelerator, too."""

    def means_ours(device: Any, kwargs: Mapping[str, Any]) -> bool:
        if "device_type" in kwargs:
            return bool(kwargs["device_type"] == PRIVATEUSE1)
        if device is None or isinstance(device, int):
            return True
        return torch.device(device).type == device_type

    stand_ins = {
        "Stream": make_by_device(PlainStream, stream, means_ours),
        "Event": make_by_device(PlainEvent, event, means_ours),
    }
    for name, stand_in in stand_ins.items():
        for module in (torch, torch._C):  # Dynamo makes those of a compiled function by the name in torch._C
            setattr(module, name, stand_in)
