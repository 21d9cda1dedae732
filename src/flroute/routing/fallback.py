"""The host fallback: PyTorch's own host implementation does the work of one call on device tensors.

Each storage is aliased, or copied, once, and the arguments are strided over it, so that arguments that share memory on
the device share it on the host: overlap checks, in-place writes and aliasing come out as they would there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, TypeVar

import numpy as np
import torch

from flroute.device.capsule import span_of
from flroute.device.dtypes import NUMPY_CARRIERS
from flroute.device.memory import DeviceArray
from flroute.device.out_of_memory import out_of_memory as describe
from flroute.device.table import DEVICE_TYPE, Device, device_at
from flroute.device.tensors import adopt_host, restrided, settle, view_of_storage, without_repeats
from flroute.errors import DeviceError, FlrouteError
from flroute.routing import transfers
from flroute.routing.expected import expected_results
from flroute.routing.schema import OpFacts, tensors_in, with_numbers_as_tensors, written_tensors
from flroute.routing.sparse import LAYOUTS as SPARSE_LAYOUTS
from flroute.routing.sparse import is_sparse, overwrite, parts_of, with_parts
from flroute.torch_compat import find_op, host_storage_at, storage_key, without_host_autocast

F = TypeVar("F", bound=Callable[..., Any])

_HOST = torch.device("cpu")
_ALIGNMENT = 16  # bytes; no item is larger


@dataclass
class _HostStorage:
    """The host's stand-in for a device storage, or for the part of it that the call can reach."""

    storage: torch.UntypedStorage
    start: int  # byte of the device storage at which the stand-in begins
    device_tensor: torch.Tensor
    keep: Any = None


class HostCall:
    """One call on the host.

    Args:
        facts: of the op.
        device: where new results go.
        alias: alias host-visible memory instead of copying it.

    Attributes:
        bytes_to_host: copied from the device.
        bytes_to_device: copied to it.
    """

    def __init__(self, facts: OpFacts, device: Device, *, alias: bool) -> None:
        self._facts, self._device = facts, device
        self._alias = alias
        self._storages: dict[int, _HostStorage] = {}
        self._spans: dict[int, tuple[int, int]] = {}
        self._lowered: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._device_of: dict[int, torch.Tensor] = {}
        self._resizable: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.bytes_to_host = 0
        self.bytes_to_device = 0

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Lower the arguments, call the op, bring the results back."""
        tensors = tensors_in(args, kwargs)
        for tensor in tensors:
            for part in parts_of(tensor) if tensor.device.type == DEVICE_TYPE else ():
                self._note_span(part)
        self._offer_resizable_outputs(args, kwargs)
        host_args = tuple(self._lower(a) for a in with_numbers_as_tensors(self._facts, args))
        host_kwargs = {name: self._lower(value) for name, value in kwargs.items()}
        if any(map(is_sparse, tensors)):
            self._say_what_wants_gradients(tensors)
        with without_host_autocast():
            result = self._facts.op(*host_args, **host_kwargs)
        self._write_back(args, kwargs)
        return self._lift(result)

    # -- to the host

    def _say_what_wants_gradients(self, tensors: list[torch.Tensor]) -> None:
        """The host's ``_sparse_mm_reduce_impl`` keeps what its backward reads only if an argument wants a gradient."""
        for tensor in tensors:
            if tensor.requires_grad and (known := self._lowered.get(id(tensor))) is not None:
                known[1].requires_grad_()

    def _note_span(self, tensor: torch.Tensor) -> None:
        """Widen what the call can reach of the tensor's storage, in bytes."""
        itemsize = tensor.dtype.itemsize
        low = int(tensor.storage_offset()) * itemsize
        high = low + span_of(tensor.shape, tensor.stride()) * itemsize
        key = storage_key(tensor.untyped_storage())
        seen = self._spans.get(key)
        self._spans[key] = (low, high) if seen is None else (min(low, seen[0]), max(high, seen[1]))

    def _offer_resizable_outputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An ``out=`` the op is going to resize gets a host tensor with memory of its own, which can grow."""
        outs: list[torch.Tensor] = [kwargs[name] for name in self._facts.out_names if name in kwargs]
        if not outs or not all(
            isinstance(out, torch.Tensor) and out.device.type == DEVICE_TYPE for out in outs
        ):
            return
        expected = None
        if any(out.numel() for out in outs) and not any(map(is_sparse, tensors_in(args, kwargs))):
            expected = expected_results(self._facts.op, args, kwargs)
        for i, out in enumerate(outs):
            want = None if expected is None else expected[i]
            if want is None or want.shape != out.shape or not out.numel():
                host = torch.empty_strided(out.shape, out.stride(), dtype=out.dtype, device="cpu")
                self._remember(out, host)
                self._resizable.append((out, host))

    def _lower(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._lower_tensor(value) if value.device.type == DEVICE_TYPE else value
        if isinstance(value, torch.device):
            return _HOST if value.type == DEVICE_TYPE else value
        if isinstance(value, list | tuple):
            return type(value)(self._lower(item) for item in value)
        return value

    def _lower_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        known = self._lowered.get(id(tensor))
        if known is not None:
            return known[1]
        if is_sparse(tensor):
            host = with_parts(tensor, [self._lower_tensor(part) for part in parts_of(tensor)])
            self._remember(tensor, host)
            return host
        storage = tensor.untyped_storage()
        if not storage.data_ptr() and tensor.numel():  # an "efficient zero" gradient owns no memory
            host = torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
        else:
            stand_in = self._storages.get(storage_key(storage))
            if stand_in is None:
                stand_in = self._storages[storage_key(storage)] = self._fetch(storage, tensor)
                if stand_in.storage.nbytes():
                    self._device_of[stand_in.storage.data_ptr()] = tensor
            offset = int(tensor.storage_offset()) - stand_in.start // tensor.dtype.itemsize
            host = restrided(stand_in.storage, tensor, offset)
        self._remember(tensor, host)
        return host

    def _remember(self, tensor: torch.Tensor, host: torch.Tensor) -> None:
        self._lowered[id(tensor)] = (tensor, host)
        self._lowered[id(host)] = (host, tensor)

    def _fetch(self, storage: torch.UntypedStorage, tensor: torch.Tensor) -> _HostStorage:
        device = device_at(tensor.device.index)
        settle(device)
        if self._alias and device.memory.host_visible:
            return _HostStorage(host_storage_at(storage.data_ptr(), storage.nbytes()), 0, tensor)
        low, high = self._spans[storage_key(storage)]
        low -= low % _ALIGNMENT
        copy = torch.empty(high - low, dtype=torch.uint8, device="cpu")
        if high > low:
            device.memory.copy_to_host(
                device.vendor_index, storage.data_ptr() + low, copy.data_ptr(), high - low
            )
            self.bytes_to_host += high - low
        return _HostStorage(copy.untyped_storage(), low, tensor, copy)

    # -- back to the device

    def _write_back(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        transfers.give_geometry(
            *((out, host.shape, host.stride()) for out, host in self._resizable if host.shape != out.shape)
        )
        for tensor, host in self._resizable:
            moved = transfers.Moved()
            transfers.move(host, tensor, moved)
            self.bytes_to_device += moved.to_device
        resized = {id(tensor) for tensor, _ in self._resizable}
        for tensor in written_tensors(self._facts, args, kwargs):
            if is_sparse(tensor):
                if tensor.device.type == DEVICE_TYPE:
                    overwrite(tensor, self._copied_sparse(self._lowered[id(tensor)][1]))
                continue
            stand_in = self._storages.get(storage_key(tensor.untyped_storage()))
            if stand_in is None or stand_in.keep is None or id(tensor) in resized:
                continue
            host = self._lowered[id(tensor)][1]
            moved = transfers.Moved()
            # the elements alone: what lies between them may have been written meanwhile
            transfers.move(without_repeats(host), without_repeats(tensor), moved)
            self.bytes_to_host += moved.to_host
            self.bytes_to_device += moved.to_device

    def _lift(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._lift_tensor(value)
        if isinstance(value, list | tuple):
            return type(value)(self._lift(item) for item in value)
        return value

    def _lift_tensor(self, host: torch.Tensor) -> torch.Tensor:
        known = self._lowered.get(id(host))
        if known is not None:
            return known[1]
        if is_sparse(host):
            return self._lifted_sparse(host)
        if host.numel() and not host.data_ptr():  # an "efficient zero" owns no memory
            return self._adopt(torch.zeros(host.shape, dtype=host.dtype, device="cpu"))
        address = host.untyped_storage().data_ptr()
        argument = self._device_of.get(address) if address else None
        if argument is not None:  # the op returned (a view of) an argument: keep the alias
            start = self._storages[storage_key(argument.untyped_storage())].start
            return view_of_storage(argument, host, int(host.storage_offset()) + start // host.dtype.itemsize)
        return self._adopt(host)

    def _lifted_sparse(self, host: torch.Tensor) -> torch.Tensor:
        if host.layout not in SPARSE_LAYOUTS:  # mkldnn's
            raise DeviceError(
                f"{self._facts.name} on {self._device.name} returns a tensor of layout {host.layout}, which lives on the "
                f"host only: call it on tensor.cpu()"
            )
        return with_parts(host, [self._lift_tensor(part) for part in parts_of(host)])

    def _copied_sparse(self, host: torch.Tensor) -> torch.Tensor:
        """Likewise, in memory of its own: what was written on the host may share it with stand-ins."""
        return with_parts(host, [self._adopt(part.clone()) for part in parts_of(host)])

    def _adopt(self, host: torch.Tensor) -> torch.Tensor:
        if self._alias and self._device.memory.host_visible:
            return adopt_host(self._device, host)
        self.bytes_to_device += span_of(host.shape, host.stride()) * host.dtype.itemsize
        return adopt_host(self._device, host, share=False)


# -- host work that a kernel asks for ------------------------------------------------------------------------------

InKernel = Callable[[str, list[torch.Tensor], Callable[[], Any]], Any]
"""Accounts for host work in a kernel: takes the op, its host tensors, and the work."""

_callers: set[CodeType] = set()


def calls_kernels(function: F) -> F:
    """Mark a function that calls kernels and has the bound ``Invocation.explain`` in its local ``explain``.

    ``host_fallback`` and ``out_of_memory`` look for such a frame among their callers: who runs costs nothing until somebody asks.
    """
    _callers.add(function.__code__)
    return function


def _running() -> Any | None:
    """The ``Invocation`` of the kernel that runs; ``None`` outside a kernel."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code in _callers:
            return frame.f_locals["explain"].__self__
        frame = frame.f_back
    return None


def out_of_memory(why: MemoryError, asked: int) -> torch.OutOfMemoryError:
    """What a kernel raises if there is no memory for its result; the message names the op, the device, and who holds what.

    Args:
        why: what the vendor's memory raised.
        asked: how many bytes it was asked for.

    Example:
        >>> def result_memory(memory, device, nbytes):
        ...     try:
        ...         return memory.allocate(device, nbytes)
        ...     except MemoryError as error:
        ...         raise out_of_memory(error, nbytes) from error
    """
    running = _running()
    if running is None:
        return torch.OutOfMemoryError(f"out of memory: asked for {asked} bytes outside a kernel. {why}")
    return describe(running.device, asked, running.facts.name, why)


def host_fallback(op: str, *args: Any, **kwargs: Any) -> Any:
    """Compute ``op`` on the host from inside a kernel, and account for it.

    The decision is recorded as a fallback of that op with the reason ``in_kernel`` and the kernel's name; under
    ``fallback="error"`` it raises instead.

    Args:
        op: an overload, ``"aten::erfinv"``.
        args: the op's arguments, with the arrays the kernel received in place of tensors.
        kwargs: likewise.

    Returns:
        numpy arrays in place of tensors.

    Raises:
        FallbackError: the session's policy is ``error``.
        FlrouteError: called outside a kernel, or with an array the host cannot read.

    Example:
        >>> from flroute.vendor import kernel
        >>> @kernel("aten::erfinv", dtypes=("float32",))
        ... def erfinv(x):
        ...     return host_fallback("aten::erfinv", x)
    """
    running = _running()
    if running is None:
        raise FlrouteError(
            f"host_fallback({op!r}) was called outside a kernel; on the host, call the op on host tensors"
        )
    found = find_op(op)
    if found is None:
        raise FlrouteError(f"host_fallback: this PyTorch has no op {op!r}")
    host_args = [_array_to_host(a) for a in args]
    host_kwargs = {name: _array_to_host(value) for name, value in kwargs.items()}
    tensors = tensors_in(tuple(host_args), host_kwargs)
    return _host_to_array(running.account(op, tensors, lambda: found(*host_args, **host_kwargs)))


def _array_to_host(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, DeviceArray):
        raise FlrouteError(
            "host_fallback takes arrays the host can read; copy a DeviceArray to the host with your Memory first"
        )
    if isinstance(value, list | tuple):
        return type(value)(_array_to_host(item) for item in value)
    return value


def _host_to_array(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.numpy() if value.dtype in NUMPY_CARRIERS else value
    if isinstance(value, list | tuple):
        return type(value)(_host_to_array(item) for item in value)
    return value
