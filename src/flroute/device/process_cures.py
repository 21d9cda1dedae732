"""What registering a device changes for the rest of the process, and its cures.

Each is listed by ``flroute doctor``.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import torch
from torch.multiprocessing import reductions
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend

from flroute.device import autocast, data_parallel, dlpack, pinned_memory
from flroute.device.serialization import storage_on_device
from flroute.device.table import DEVICE_TYPE, device_at, to_index
from flroute.device.tensors import is_on_device, resize_memory
from flroute.device.torch_fl import accelerator, streams
from flroute.errors import DeviceError
from flroute.torch_compat import (
    answer_for_accelerator,
    before_printing,
    carries_more_than_its_impl,
    choose_as_on_host,
    compile_op_by_op,
    find_op,
    replace_storage_resize,
    replace_streams_and_events,
    run_composite,
    single_threaded_backward,
    when_autocast_ends,
    wrap_backward,
)


@dataclass(frozen=True)
class Cure:
    """One change to the process.

    Attributes:
        name: what is changed.
        why: what would happen without it, in one line.
        install: makes the change; a second call does nothing.
    """

    name: str
    why: str
    install: Callable[[], None]


# Storages and other processes -------------------------------------------------------------------------------------


def _make_storages() -> None:
    """``torch.UntypedStorage(n, device="fl")`` gives device memory; PyTorch's C++ would call a null allocator.

    ``storage.fl()`` stands on it, which ``torch.load(map_location=lambda storage, _: storage.fl(1))`` calls.
    """
    storage = torch.UntypedStorage
    original: Callable[..., Any] = storage.__new__

    def new(cls: type[torch.UntypedStorage], *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None:
            return original(cls, *args, **kwargs)
        if torch.device(device).type != DEVICE_TYPE:
            return original(cls, *args, device=device, **kwargs)
        return storage_on_device(original(cls, *args, **kwargs), to_index(device))

    storage.__new__ = new  # type: ignore[method-assign,assignment]
    generate_methods_for_privateuse1_backend(
        for_tensor=False, for_module=False, for_packed_sequence=False, for_storage=True
    )


def _resize_storages() -> None:
    """``storage.resize_`` gives device storages other memory; FSDP frees and takes back parameters that way."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def resize(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            if self.device.type != DEVICE_TYPE:
                return original(self, size)  # type: ignore[no-any-return]
            if size != self.nbytes():
                resize_memory(self, device_at(self.device.index), size)
            return self

        return resize

    replace_storage_resize(make)


def _refuse_to_share() -> None:
    """Device memory is one process's own; say so instead of reading its address in another one."""
    for kind, reduce in (
        (torch.Tensor, reductions.reduce_tensor),
        (torch.nn.Parameter, reductions.reduce_tensor),
        (torch.UntypedStorage, reductions.reduce_storage),
    ):
        ForkingPickler.register(kind, _only_off_device(reduce))


def _only_off_device(reduce: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(reduce)
    def reduce_off_device(value: Any) -> Any:
        if value.device.type != DEVICE_TYPE:
            return reduce(value)
        what = f"a {type(value).__name__} of {tuple(value.size()) if isinstance(value, torch.Tensor) else value.size()}"
        what = f"{what} on {value.device}"
        if threading.current_thread().name == "QueueFeederThread":
            # multiprocessing.Queue pickles in a thread of its own: an error there is printed and the receiver waits
            # for ever. Send the error instead; it is raised where the tensor would have arrived.
            return _cannot_be_sent, (what,)
        return _cannot_be_sent(what)

    return reduce_off_device


def _cannot_be_sent(what: str) -> NoReturn:
    raise DeviceError(
        f"{what} cannot be sent to another process: device memory belongs to the process that made it. In a DataLoader "
        f"worker, return it on the host and move it in the training process: batch.to({DEVICE_TYPE!r})"
    )


# Tensors that take the data of others ---------------------------------------------------------------------------------


def _take_data_across() -> None:
    """``param.data = param.data.to("fl")`` makes a host tensor one of the device and back, as it does with cuda."""
    question = find_op("aten::_has_compatible_shallow_copy_type")

    def may_take(tensor: torch.Tensor, other: torch.Tensor) -> bool:
        plain = not (carries_more_than_its_impl(tensor) or carries_more_than_its_impl(other))
        if plain and tensor.device.type != other.device.type:
            return tensor.layout == other.layout == torch.strided
        return bool(run_composite(question, (tensor, other), {}))

    _library().impl("_has_compatible_shallow_copy_type", may_take, "AutogradPrivateUse1")


# Pinned memory ----------------------------------------------------------------------------------------------------


def _pin_nothing() -> None:
    pinned_memory.install(_library())


@functools.cache
def _library() -> torch.library.Library:
    return torch.library.Library("aten", "IMPL")  # unregisters when it dies: kept for the life of the process


# Backward passes --------------------------------------------------------------------------------------------------


def _run_backward_in_the_calling_thread() -> None:
    wrap_backward(single_threaded_backward)


# Printing ---------------------------------------------------------------------------------------------------------


def _print_from_the_host() -> None:
    """PyTorch computes to print (extremes, widths); of devices that compile each op it prints a copy on the host."""
    before_printing(lambda tensor: tensor.to("cpu") if is_on_device(tensor) else tensor)


# Streams and torch.accelerator -------------------------------------------------------------------------------------


def _make_streams_and_events() -> None:
    def event(device: Any = None, **kwargs: Any) -> torch.Event:
        return streams.Event(device=device, **kwargs)

    replace_streams_and_events(streams.Stream, event, DEVICE_TYPE)


def _answer_for_accelerator() -> None:
    answer_for_accelerator(accelerator.ANSWERS)


# Choices that PyTorch makes by device type ------------------------------------------------------------------------


def _accumulate_as_the_host_does() -> None:
    choose_as_on_host(DEVICE_TYPE)


def _compile_op_by_op() -> None:
    compile_op_by_op(DEVICE_TYPE)


def _forget_casts_with_pytorchs_own() -> None:
    when_autocast_ends(autocast.forget_casts)


# Many devices in one process ----------------------------------------------------------------------------------------


def _copy_between_devices() -> None:
    """What ``torch.nn.DataParallel`` moves, and adds up, goes through the device's own copies; PyTorch has cuda's only."""
    for function in (data_parallel.scatter, data_parallel.gather, data_parallel.broadcast_coalesced,
                     data_parallel.reduce_add_coalesced):  # fmt: skip
        data_parallel.replace(function)


CURES: tuple[Cure, ...] = (
    Cure(
        "storages made by device",
        'torch.UntypedStorage(n, device="fl") would end the process',
        functools.cache(_make_storages),
    ),
    Cure(
        "storages that are resized",
        "storage.resize_ would raise, and with it FSDP, which frees parameters that way",
        functools.cache(_resize_storages),
    ),
    Cure(
        "device tensors sent to another process",
        "a DataLoader worker that returns device tensors would die without a word",
        functools.cache(_refuse_to_share),
    ),
    Cure(
        "data of another device given to a tensor",
        "param.data = param.data.to('fl') would raise, and fully_shard of a model that is on the host",
        functools.cache(_take_data_across),
    ),
    Cure(
        "pinned memory without another accelerator",
        "DataLoader(pin_memory=True) would raise in scripts that use the host only, and DDP(find_unused_parameters=True)",
        functools.cache(_pin_nothing),
    ),
    Cure(
        "backward passes in the calling thread",
        "the autograd engine's own device threads would abort the process at exit",
        functools.cache(_run_backward_in_the_calling_thread),
    ),
    Cure(
        "tensors printed from a copy on the host",
        'print(tensor) would fall back, and raise where the policy is fallback="error"',
        functools.cache(_print_from_the_host),
    ),
    Cure(
        "copies of torch.nn.DataParallel",
        "DataParallel would raise: the copies between devices that PyTorch has are cuda's",
        functools.cache(_copy_between_devices),
    ),
    Cure(
        "torch.Stream and torch.Event by device",
        'torch.Stream("fl:1") would be the default stream of fl:0, and torch.Event("fl").synchronize() raise',
        functools.cache(_make_streams_and_events),
    ),
    Cure(
        "DLPack from the device",
        "torch.from_dlpack(tensor) would raise, and libraries of the host copy what they can see",
        functools.cache(dlpack.install),
    ),
    Cure(
        "torch.accelerator",
        "its memory functions and synchronize() would raise, set_device_index() do nothing, empty_host_cache() end the process",
        functools.cache(_answer_for_accelerator),
    ),
    Cure(
        "automatic options of linear_cross_entropy",
        "half-precision inputs would be accumulated in half precision, as PyTorch does on devices it has not measured",
        functools.cache(_accumulate_as_the_host_does),
    ),
    Cure(
        "graphs that Inductor is given",
        "torch.compile(model) would raise a KeyError of Inductor's, which has no code for the device",
        functools.cache(_compile_op_by_op),
    ),
    Cure(
        "casts of weights dropped when autocast ends",
        'the casts that torch.autocast("fl") keeps would stay in memory with their graphs',
        functools.cache(_forget_casts_with_pytorchs_own),
    ),
)
