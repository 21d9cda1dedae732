"""What a thread's calls of PyTorch hear of cuda: arguments that name it mean the device, and tensors on the device say cuda.

Only code outside PyTorch and flroute is told so. PyTorch has special ways for what is on cuda; it gets the truth, and
takes those it has for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from flroute.cuda_alias.callers import asker, is_own
from flroute.cuda_alias.ordinals import ALIAS, cuda_device, names_alias
from flroute.cuda_alias.tensor_types import dtype_of, type_name
from flroute.device.table import DEVICE_TYPE
from flroute.torch_compat import UNPICKLERS, LeftInAnyOrder, skip_in_dynamo

if TYPE_CHECKING:
    from flroute.cuda_alias.alias import Alias

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class CudaMode(LeftInAnyOrder):
    """Has one thread's calls hear of cuda as ``alias`` says, while that is open."""

    def __init__(self, alias: Alias) -> None:
        super().__init__()
        self.alias = alias
        self.answers = True

    def __torch_function__(self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        if not (self.answers and self.alias.is_open):  # a thread may outlive the session
            return func(*args, **(kwargs or {}))
        handle = HANDLERS.get(func)
        if handle is not None:
            return handle(self.alias, func, args, kwargs or {})
        if not kwargs:
            return func(*args)
        if "device" in kwargs or "pin_memory" in kwargs:
            kwargs = redirected(self.alias, func, kwargs)
        return func(*args, **kwargs)


skip_in_dynamo(CudaMode.__torch_function__)


def redirected(alias: Alias, func: Any, kwargs: Kwargs) -> Kwargs:
    """The keywords of a call of ``func`` with the device that is meant; memory of the host need not be pinned for it."""
    changed = {}
    place = kwargs.get("device")
    meant = alias.ordinals.device(place)
    if meant is not place:
        changed["device"] = meant
    if kwargs.get("pin_memory"):
        changed["pin_memory"] = False
    if not changed:
        return kwargs
    alias.uses.add(_name_of(func), asker(1))
    return {**kwargs, **changed}


def _name_of(func: Any) -> str:
    name = getattr(func, "__name__", str(func))
    on_tensor = getattr(torch.Tensor, name, None) is func
    return f"Tensor.{name}" if on_tensor else f"torch.{name}"


def _user() -> FrameType | None:
    """The frame that asks the caller, a handler, unless it is PyTorch's or flroute's."""
    frame = asker(2)
    return None if is_own(frame) else frame


# What tensors say of themselves -------------------------------------------------------------------------------------


def _device(alias: Alias, func: Any, args: Args, kwargs: Kwargs) -> Any:
    device = func(*args, **kwargs)
    if device.type != DEVICE_TYPE or (frame := _user()) is None:
        return device
    alias.uses.add("Tensor.device", frame)
    return alias.ordinals.alias(device.index) or device


def _is_cuda(alias: Alias, func: Any, args: Args, kwargs: Kwargs) -> bool:
    if args[0].device.type != DEVICE_TYPE or (frame := _user()) is None:
        return bool(func(*args, **kwargs))
    alias.uses.add("Tensor.is_cuda", frame)
    return alias.ordinals.alias(args[0].device.index) is not None


def _get_device(alias: Alias, func: Any, args: Args, kwargs: Kwargs) -> int:
    index: int = func(*args, **kwargs)
    if args[0].device.type != DEVICE_TYPE or _user() is None:
        return index
    return alias.ordinals.number(index)


def _type(alias: Alias, func: Any, args: Args, kwargs: Kwargs) -> Any:
    asked = args[1] if len(args) > 1 else kwargs.get("dtype")
    if asked is None:
        name = func(*args, **kwargs)
        return type_name(name) if _user() is not None else name
    dtype = dtype_of(asked)
    if dtype is None:
        return func(*args, **kwargs)
    alias.uses.add("Tensor.type", asker(1))
    non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    return args[0].to(alias.ordinals.device(ALIAS), dtype, non_blocking=non_blocking)


# Where they are sent ------------------------------------------------------------------------------------------------


def _cuda(alias: Alias, _func: Any, args: Args, kwargs: Kwargs) -> Any:
    alias.uses.add("Tensor.cuda", asker(1))
    return _to_cuda(alias, *args, **kwargs)


def _to_cuda(
    alias: Alias,
    tensor: torch.Tensor,
    device: Any = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> torch.Tensor:
    target = alias.ordinals.device(ALIAS if device is None else device)
    return tensor.to(target, non_blocking=non_blocking, memory_format=memory_format)


def _to(alias: Alias, func: Any, args: Args, kwargs: Kwargs) -> Any:
    if len(args) > 1:
        meant = alias.ordinals.device(args[1])
        if meant is not args[1]:
            alias.uses.add("Tensor.to", asker(1))
            args = (args[0], meant, *args[2:])
    elif "device" in kwargs:
        kwargs = redirected(alias, func, kwargs)
    return func(*args, **kwargs)


def _without_device(alias: Alias, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """``pin_memory("cuda")``: the host's memory needs no pinning, whatever the device."""
    place = args[1] if len(args) > 1 else kwargs.get("device")
    if not names_alias(place):
        return func(*args, **kwargs)
    alias.uses.add(_name_of(func), asker(1))
    return func(args[0])


def _torch_device(alias: Alias, func: Any, args: Args, kwargs: Kwargs) -> torch.device:
    """The user's ``torch.device(0)`` is cuda's; what PyTorch makes of the user's ``"cuda"`` is the device.

    What a file has is the user's: ``torch.load`` gives a configuration with ``torch.device("cuda")`` back as it was saved.
    """
    made: torch.device = func(*args, **kwargs)
    if made.type not in (ALIAS, DEVICE_TYPE):
        return made
    frame = asker(1)
    by_user = not is_own(frame) or frame.f_code in UNPICKLERS
    if made.type == ALIAS and not by_user:
        return alias.ordinals.device(made)  # type: ignore[no-any-return]
    if by_user and args and isinstance(args[0], int):
        return cuda_device(args[0])
    return made


Handler = Callable[["Alias", Any, Args, Kwargs], Any]

HANDLERS: dict[Any, Handler] = {
    torch.Tensor.device.__get__: _device,
    torch.Tensor.is_cuda.__get__: _is_cuda,  # type: ignore[attr-defined]
    torch.Tensor.get_device: _get_device,
    torch.Tensor.type: _type,
    torch.Tensor.cuda: _cuda,
    torch.Tensor.to: _to,
    torch.Tensor.pin_memory: _without_device,
    torch.Tensor.is_pinned: _without_device,
    torch.device: _torch_device,
}
"""Calls that are more than a keyword ``device``."""
