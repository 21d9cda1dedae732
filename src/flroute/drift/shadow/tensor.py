"""A tensor that carries a device's value and a reference's through whatever is computed from it."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from flroute import activation
from flroute.device.table import DEVICE_TYPE
from flroute.drift.host_values import is_dense, map_values, seen_from_host
from flroute.drift.reference import HostReference, without_modes
from flroute.drift.shadow.observer import Observer
from flroute.drift.shadow.places import Places
from flroute.drift.shadow.report import ShadowReport
from flroute.drift.shadow.shadow import innermost_observer
from flroute.errors import ShadowError
from flroute.torch_compat import set_geometry, share_storage, skip_in_dynamo, storage_key, wrapper_of


class ShadowTensor(torch.Tensor):
    """Wraps a tensor on a device; every aten call on it runs on the device and in a reference, and both errors are noted.

    Results are ``ShadowTensor`` again, views share their base's memory in both values, and autograd runs as on the tensor itself.

    Args:
        value: a dense tensor on a device.
        observer: whose record is kept; that of the innermost ``flroute.shadow`` block, or else one of the process's own.

    Raises:
        ShadowError: the tensor is not on a device.

    Example:
        >>> import flroute, torch
        >>> x = flroute.ShadowTensor(torch.full((2, 2), 1 / 3, device="fl"))
        >>> y = (x @ x).exp()
        >>> y.device, y.value.dtype, y.reference.dtype
        (device(type='fl', index=0), torch.float32, torch.float64)
        >>> y.difference.max_ulp < 4
        True
    """

    _value: torch.Tensor
    _observer: Observer

    def __new__(  # noqa: D102, PYI034 -- see the class; typing.Self needs Python 3.11
        cls, value: torch.Tensor, observer: Observer | None = None
    ) -> ShadowTensor:
        if not isinstance(value, torch.Tensor) or value.device.type != DEVICE_TYPE:
            where = value.device if isinstance(value, torch.Tensor) else type(value).__name__
            raise ShadowError(
                f"ShadowTensor wraps a tensor on a device ({DEVICE_TYPE!r}), it was given one on {where}: "
                f"move it first, tensor.to({DEVICE_TYPE!r})"
            )
        if isinstance(value, ShadowTensor):
            return value
        made = wrapper_of(cls, value, requires_grad=value.requires_grad)
        made._value = value.detach()
        made._observer = observer or innermost_observer() or _of_the_process()
        return made  # type: ignore[no-any-return]

    def __init__(self, value: torch.Tensor, observer: Observer | None = None) -> None:
        super().__init__()

    @property
    def value(self) -> torch.Tensor:
        """The device's value, an ordinary tensor on the device."""
        return self._value

    @property
    def reference(self) -> torch.Tensor:
        """The reference's value, a copy on the host."""
        with without_modes():
            carried = self._observer.carried.view(self._value)
            found = seen_from_host(self._value) if carried is None else carried
            return found.to(self._observer.reference.dtype_for(self.dtype), copy=True)

    @property
    def difference(self) -> Any:
        """How far the device's value is from the reference's (``flroute.drift.measures.Difference``)."""
        from flroute.drift.measures import difference

        with without_modes():
            return difference(seen_from_host(self._value), self.reference)

    @property
    def report(self) -> ShadowReport:
        """What is on the record that this tensor's calls go to."""
        return ShadowReport(self._observer.ledger, self._observer.reference)

    def __repr__(self, **_contents: Any) -> str:  # type: ignore[override]
        return f"ShadowTensor({self._value!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """What is saved is the device's value, an ordinary tensor: a record is of one process."""
        return self._value.__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # PyTorch's own stub leaves the function out
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        observer = _common_observer(args, kwargs)
        values = map_values(_unwrapped, args)
        result = observer.call(func, values, {name: map_values(_unwrapped, v) for name, v in kwargs.items()})
        given = _shadows((*args, *kwargs.values()))
        wrapped = _wrapped_like(given, result, observer)
        _sharing_memory(given, wrapped)
        return wrapped


# Compiled functions run as they stand: each call is to be seen.
skip_in_dynamo(ShadowTensor.__torch_dispatch__)


def _sharing_memory(given: list[ShadowTensor], wrapped: Any) -> None:
    """Wrappers share a storage where what they wrap does, and look like it, even if it was given another shape."""
    for tensor in given:
        if _geometry(tensor) != _geometry(tensor.value):
            set_geometry(tensor, tensor.value)
    known = {storage_key(t.value.untyped_storage()): t for t in given if is_dense(t.value)}
    for tensor in _shadows(wrapped):
        if is_dense(tensor.value) and all(tensor is not t for t in given):
            base = known.get(storage_key(tensor.value.untyped_storage()))
            if base is not None:
                share_storage(tensor, base)


def _geometry(tensor: torch.Tensor) -> Any:
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.value if isinstance(tensor, ShadowTensor) else tensor


def _wrapped_like(given: list[ShadowTensor], result: Any, observer: Observer) -> Any:
    """What the op returned is wrapped; a tensor that it was given is returned as it was given."""
    wrappers = {id(t.value): t for t in given}

    def wrapped(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in wrappers:
            return wrappers[id(tensor)]
        return ShadowTensor(tensor, observer) if tensor.device.type == DEVICE_TYPE else tensor

    return map_values(wrapped, result)


def _shadows(value: Any) -> list[ShadowTensor]:
    if isinstance(value, ShadowTensor):
        return [value]
    if isinstance(value, list | tuple):
        return [found for item in value for found in _shadows(item)]
    return []


def _common_observer(args: Any, kwargs: Any) -> Observer:
    observers = {id(t._observer): t._observer for t in _shadows((*args, *kwargs.values()))}
    if len(observers) > 1:
        raise ShadowError(
            "this call is given ShadowTensors of two records, whose references know nothing of each other: "
            "make both in one flroute.shadow block, or give both the same observer"
        )
    return next(iter(observers.values()))


@cache
def _of_the_process() -> Observer:
    activation.activate()
    return Observer(HostReference(precise=True), Places().here)
