"""``torch.autocast("fl")``: kernels at the device's autocast key, which cast the arguments of a call and make it again.

The key is above autograd: a cast is an ordinary op, with a gradient, routed and accounted for. Which op gets what is data
(``autocast_ops.py``). Where autocast is off the key is not looked at, and a call costs nothing more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from flroute.device import autocast_ops
from flroute.device.table import DEVICE_TYPE
from flroute.errors import AutocastError
from flroute.torch_compat import (
    find_op,
    has_kernel,
    has_memory_of_its_own,
    run_composite,
    schema_of,
    skip_in_dynamo,
    version_of,
    without_device_autocast,
)

_KEY = "AutocastPrivateUse1"
_MODEL = "AutocastXPU"  # PyTorch's own device whose kernels are these lists and nothing else
_COMPOSITE = "CompositeImplicitAutograd"

Caller = Callable[..., Any]

_libraries: list[torch.library.Library] = []  # one that dies takes its kernels with it


def install() -> None:
    """Register the kernels with PyTorch."""
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    for name, kernel in _kernels():
        library.impl(name.removeprefix("aten::"), kernel, _KEY)


def _kernels() -> Iterator[tuple[str, Caller]]:
    for names, make in (
        (autocast_ops.LOWER_PRECISION, _in_lower_precision),
        (autocast_ops.FLOAT32, _in_float32),
        (autocast_ops.FLOAT32_RESULT, _with_float32_result),
        (autocast_ops.FLOAT32_OVERLOAD, _by_float32_overload),
        (autocast_ops.PROMOTED, _promoted),
        (autocast_ops.BANNED, _banned),
    ):
        for name in names:
            if (op := find_op(name)) is not None and has_kernel(name, _MODEL):
                yield name, _unseen_by_dynamo(make(op))
    for name in autocast_ops.COMPOSITES:
        if (op := find_op(name)) is not None and has_kernel(name, _COMPOSITE):
            yield name, _unseen_by_dynamo(_split(op))


def _unseen_by_dynamo(kernel: Caller) -> Caller:
    skip_in_dynamo(kernel)
    return kernel


# One kind of kernel per list ----------------------------------------------------------------------------------------


def _in_lower_precision(op: Any) -> Caller:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_device_autocast():
            return _call(op, args, kwargs, torch.get_autocast_dtype(DEVICE_TYPE))

    return kernel


def _in_float32(op: Any) -> Caller:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_device_autocast():
            return _call(op, args, kwargs, torch.float32)

    return kernel


def _with_float32_result(op: Any) -> Caller:
    parameters = schema_of(op).arguments
    at = next(i for i, parameter in enumerate(parameters) if parameter.name == "dtype")

    def kernel(first: Any, *rest: Any, **kwargs: Any) -> Any:
        args = (first, *rest)
        with without_device_autocast():
            said = args[at] if at < len(args) else kwargs.get("dtype")
            if said is None and _is_eligible(first):
                args, kwargs = args[:at], {**kwargs, "dtype": torch.float32}
            return op(*args, **kwargs)

    return kernel


def _by_float32_overload(op: Any) -> Caller:
    overload: Any = find_op(autocast_ops.FLOAT32_OVERLOAD[op.name()])
    defaults = [p.default_value if p.has_default_value() else None for p in schema_of(op).arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_device_autocast():
            if not _is_eligible(args[0]):
                return op(*args, **kwargs)
            return overload(*args, *defaults[len(args) :], **kwargs, dtype=torch.float32)

    return kernel


def _promoted(op: Any) -> Caller:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_device_autocast():
            return _call(op, args, kwargs, _widest(op, (*args, *kwargs.values())))

    return kernel


def _banned(op: Any) -> Caller:
    def kernel(*_args: Any, **_kwargs: Any) -> Any:
        raise AutocastError(
            f"{op.name()} is unsafe under torch.autocast({DEVICE_TYPE!r}): {autocast_ops.BANNED[op.name()]}; or compute it "
            f"inside torch.autocast({DEVICE_TYPE!r}, enabled=False), of float32 tensors"
        )

    return kernel


def _split(op: Any) -> Caller:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return run_composite(op, args, kwargs)

    return kernel


# Casting ----------------------------------------------------------------------------------------------------------


def _call(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype) -> Any:
    return op(
        *[_cast(value, dtype) for value in args],
        **{name: _cast(value, dtype) for name, value in kwargs.items()},
    )


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        if value.dtype is dtype or not _is_eligible(value):
            return value
        return _kept_cast(value, dtype) if _is_weight(value, dtype) else value.to(dtype)
    if isinstance(value, list | tuple):
        return [_cast(item, dtype) for item in value]
    return value


def _is_eligible(tensor: torch.Tensor) -> bool:
    """Whether autocast casts it: a number of the host's keeps its dtype, and so does what is wider than float32."""
    dtype = tensor.dtype
    return dtype.is_floating_point and dtype is not torch.float64 and tensor.device.type == DEVICE_TYPE


def _widest(op: Any, values: Iterable[Any]) -> torch.dtype:
    lower = torch.get_autocast_dtype(DEVICE_TYPE)
    found = {tensor.dtype for tensor in _tensors_in(values) if _is_eligible(tensor)}
    if torch.float32 in found:
        return torch.float32
    if others := found - {lower}:
        raise AutocastError(
            f"{op.name()} under torch.autocast({DEVICE_TYPE!r}, dtype={lower}) takes {lower} and torch.float32, not "
            f"{', '.join(sorted(map(str, others)))}: there is no telling which to promote to. Cast the argument first, or "
            f"give torch.autocast its dtype"
        )
    return lower


def _tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors_in(value)


# Casts of weights, kept until the outermost autocast ends -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _KeptCast:
    weight: torch.Tensor  # kept alive: its id is the key
    version: int
    address: int
    value: torch.Tensor


class _Thread(threading.local):
    def __init__(self) -> None:
        self.casts: dict[tuple[int, torch.dtype], _KeptCast] = {}


_thread = _Thread()


def forget_casts() -> None:
    """Drop this thread's casts of weights."""
    _thread.casts.clear()


def _is_weight(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether its cast is worth keeping, by PyTorch's own rule: a leaf in float32 that is trained."""
    return (
        tensor.requires_grad
        and tensor.is_leaf
        and tensor.dtype is torch.float32
        and dtype is not torch.float32
        and torch.is_autocast_cache_enabled()
        and has_memory_of_its_own(tensor)
    )


def _kept_cast(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    key = id(weight), dtype
    kept = _thread.casts.get(key)
    if kept is not None and _is_good(kept, weight):
        return kept.value
    value = weight.to(dtype)
    _thread.casts[key] = _KeptCast(weight, version_of(weight), weight.data_ptr(), value)
    return value


def _is_good(kept: _KeptCast, weight: torch.Tensor) -> bool:
    """Not so once the weight was written or moved, nor if gradients are to flow through a cast that was made without them."""
    return (
        kept.version == version_of(weight)
        and kept.address == weight.data_ptr()
        and kept.value.device == weight.device  # two devices may have memory at one address
        and (kept.value.requires_grad or not torch.is_grad_enabled())
    )
