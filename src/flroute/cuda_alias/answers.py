"""Replacements that are more than another name: what cuda's numbers, files and defaults become."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from flroute.cuda_alias.alias import any_open, current, mode_here
from flroute.cuda_alias.callers import asker, is_own
from flroute.cuda_alias.facade import facade
from flroute.cuda_alias.ordinals import ALIAS, cuda_device, names_alias
from flroute.cuda_alias.tensor_types import dtype_of
from flroute.device import torch_fl
from flroute.device.table import DEVICE_TYPE

# Numbers of devices ---------------------------------------------------------------------------------------------------


def set_device(device: Any) -> None:
    """Make the device this thread's current one."""
    torch_fl.set_device(current().ordinals.device(device))


def _current_device() -> int:
    return current().ordinals.number(torch_fl.current_device())


def _device_count() -> int:
    return len(current().ordinals.devices)


def _rng_states() -> list[torch.Tensor]:
    return [torch_fl.get_rng_state(device.index) for device in current().ordinals.devices]


def _set_rng_states(states: list[torch.Tensor]) -> None:
    for device, state in zip(current().ordinals.devices, states, strict=False):
        torch_fl.set_rng_state(state, device.index)


OF_CUDA: dict[str, Callable[..., Any]] = {
    "is_available": lambda: _device_count() > 0,
    "current_device": _current_device,
    "device_count": _device_count,
    "get_rng_state_all": _rng_states,
    "set_rng_state_all": _set_rng_states,
}
"""Functions of ``torch.cuda`` that are about all devices, or answer with a number."""


OF_ACCELERATOR: dict[str, Callable[..., Any]] = {
    "device_count": _device_count,
    "current_device_index": _current_device,
    "set_device_index": set_device,
}
"""Functions of ``torch.accelerator`` that are about a number."""


def _said_of(device: torch.device) -> torch.device:
    if device.type != DEVICE_TYPE:
        return device
    return current().ordinals.alias(device.index or 0) or device


def default_device(original: Any) -> Any:
    """``torch.get_default_device``."""

    @functools.wraps(original)
    def get() -> torch.device:
        device: torch.device = original()
        return device if is_own(asker(1)) else _said_of(device)

    return get


def device_of(original: Any) -> Any:
    """The attribute ``device`` of streams and events."""

    def device(self: Any) -> torch.device | None:
        told: torch.device | None = original.__get__(self)
        return told if told is None or is_own(asker(1)) else _said_of(told)

    return property(device)


def current_accelerator(original: Any) -> Any:
    """``torch.accelerator.current_accelerator``."""

    @functools.wraps(original)
    def get(*args: Any, **kwargs: Any) -> torch.device | None:
        device: torch.device | None = original(*args, **kwargs)
        told = is_own(asker(1)) or device is None or device.type != DEVICE_TYPE
        return device if told else cuda_device()

    return get


def device_module(original: Any) -> Any:
    """``torch.get_device_module``: cuda's module is that of the device, in terms of cuda."""

    @functools.wraps(original)
    def get(device: Any = None) -> Any:
        meant = device is None or names_alias(device)
        return torch.cuda if meant and not is_own(asker(1)) else original(device)

    return get


def of_autocast(original: Any) -> Any:
    """``is_autocast_enabled`` and ``set_autocast_enabled``: of cuda, where no type of device is given."""

    @functools.wraps(original)
    def call(*args: Any) -> Any:
        if is_own(asker(1)):
            return original(*args)
        kind = [arg for arg in args if isinstance(arg, str)] or [ALIAS]
        return original(
            DEVICE_TYPE if kind == [ALIAS] else kind[0], *[arg for arg in args if not isinstance(arg, str)]
        )

    return call


def module_to(original: Any) -> Any:
    """``torch.nn.Module.to``."""

    @functools.wraps(original)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        ordinals = current().ordinals
        placed = [
            ordinals.device(arg) if isinstance(arg, int) and at == 0 else arg for at, arg in enumerate(args)
        ]
        if "device" in kwargs:
            kwargs = {**kwargs, "device": ordinals.device(kwargs["device"])}
        return original(self, *placed, **kwargs)

    return to


def data_parallel(original: Any) -> Any:
    """``torch.nn.DataParallel.__init__``: all devices are cuda's, not those of every vendor."""

    @functools.wraps(original)
    def init(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
        ordinals = current().ordinals
        if device_ids is None:
            device_ids = [device.index for device in ordinals.devices]
        else:
            device_ids = [ordinals.device(place).index for place in device_ids]
        if output_device is not None:
            output_device = ordinals.device(output_device).index
        original(self, module, device_ids, output_device, dim)

    return init


def packed_is_cuda(original: Any) -> Any:
    """``PackedSequence.is_cuda``."""

    def is_cuda(self: Any) -> bool:
        return self.data.device.type == DEVICE_TYPE or bool(original.fget(self))

    return property(is_cuda)


# Defaults and types -----------------------------------------------------------------------------------------------


def default_tensor_type(original: Any) -> Any:
    """``torch.set_default_tensor_type``; a type of the host's takes back the device that one of cuda's stood for."""
    placed = False

    @functools.wraps(original)
    def set_type(kind: Any) -> None:
        nonlocal placed
        dtype = dtype_of(kind)
        if dtype is None:
            original(kind)
        else:
            current().uses.add("torch.set_default_tensor_type", asker(1))
            torch.set_default_dtype(dtype)
        if placed or dtype is not None:
            torch.set_default_device(None if dtype is None else current().ordinals.device(ALIAS))
            placed = dtype is not None

    return set_type


def autocast_gpu_dtype(original: Any) -> Any:
    """``torch.get_autocast_gpu_dtype``."""

    @functools.wraps(original)
    def get() -> torch.dtype:
        return torch.get_autocast_dtype(DEVICE_TYPE)

    return get


def set_autocast_gpu_dtype(original: Any) -> Any:
    """``torch.set_autocast_gpu_dtype``."""

    @functools.wraps(original)
    def set_dtype(dtype: torch.dtype) -> None:
        torch.set_autocast_dtype(DEVICE_TYPE, dtype)

    return set_dtype


def full_memory(_original: Any) -> Any:
    """``flroute.device.out_of_memory.opening``: the words by which scripts and their libraries tell this error from others."""
    return lambda: "CUDA out of memory. "


def amp_is_there(original: Any) -> Any:
    """``torch.cuda.amp.common.amp_definitely_not_available``."""
    return functools.wraps(original)(lambda: not any_open())


def generator(original: Any) -> Any:
    """``torch.Generator``."""

    def make(device: Any = "cpu") -> Any:
        if isinstance(device, int) or names_alias(device):
            current().uses.add("torch.Generator", asker(1))
            current().ordinals.device(device)
            device = "cpu"
        return original(device=device)

    return facade(original, make)


def load(original: Any) -> Any:
    """``torch.load``; what the names of cuda's devices in a file mean, the device's own reader knows."""

    @functools.wraps(original)
    def read(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(map_location, int) and not isinstance(map_location, bool):
            map_location = cuda_device(map_location)
        if names_alias(map_location):
            current().uses.add("torch.load", asker(1))
            map_location = current().ordinals.device(map_location)
        return original(file, map_location, *args, **kwargs)

    return read


def file_name(original: Any) -> Any:
    """``flroute.device.serialization.name_of``: files say what they would on a machine with cuda, and are read there."""

    @functools.wraps(original)
    def name_of(index: int) -> str:
        return str(_said_of(torch.device(DEVICE_TYPE, index)))

    return name_of


def file_index(original: Any) -> Any:
    """``flroute.device.serialization.index_of``."""

    @functools.wraps(original)
    def index_of(location: str) -> int | None:
        if names_alias(location):
            found: int = current().ordinals.device(location).index
            return found
        index: int | None = original(location)
        return index

    return index_of


def grad_scaler(original: Any) -> Any:
    """``torch.amp.GradScaler.__init__``, whose default is cuda."""

    @functools.wraps(original)
    def init(self: Any, device: Any = ALIAS, *args: Any, **kwargs: Any) -> None:
        if device == ALIAS:
            current().uses.add("torch.amp.GradScaler", asker(1))
            device = DEVICE_TYPE
        original(self, device, *args, **kwargs)

    return init


def fork_rng(original: Any) -> Any:
    """``torch.random.fork_rng``."""

    @functools.wraps(original)
    def fork(devices: Any = None, *args: Any, **kwargs: Any) -> Any:
        frame = asker(1)
        if not is_own(frame) and kwargs.get("device_type", ALIAS) in (None, ALIAS):
            current().uses.add("torch.random.fork_rng", frame)
            kwargs["device_type"] = DEVICE_TYPE
            ordinals = current().ordinals
            if devices is None:
                devices = [device.index for device in ordinals.devices]
            else:
                devices = [ordinals.device(device).index for device in devices]
        return original(devices, *args, **kwargs)

    return fork


# torch.compile --------------------------------------------------------------------------------------------------------


def compiled(original: Any) -> Any:
    """``torch.compile``.

    What Dynamo cannot say in a graph runs as it stands, so nothing insists on one graph: on a machine with cuda there is
    one where here a function is the device's own Python.
    """

    @functools.wraps(original)
    def compile_what_can_be(*args: Any, **kwargs: Any) -> Any:
        uses = current().uses
        uses.add("torch.compile", asker(1))
        if kwargs.get("fullgraph"):
            uses.say_once("torch.compile", "fullgraph=True is not insisted on while cuda means the device")
            kwargs["fullgraph"] = False
        if kwargs.get("backend") == "cudagraphs":
            uses.say_once(
                "cudagraphs", "stands for aot_eager: kernels are Python functions, which no graph captures"
            )
            kwargs["backend"] = "aot_eager"
        return original(*args, **kwargs)

    return compile_what_can_be


def scripted(original: Any) -> Any:
    """``torch.jit.script``: its interpreter calls no function mode, so that its code would branch on the truth."""

    @functools.wraps(original)
    def script(obj: Any, *args: Any, **kwargs: Any) -> Any:
        frame = asker(1)
        if is_own(frame):
            return original(obj, *args, **kwargs)
        current().uses.add("torch.jit.script", frame)
        current().uses.say_once(
            "torch.jit.script",
            "returns what it is given, as with PYTORCH_JIT=0; torch.jit.trace makes what can be saved",
        )
        return obj

    return script


# Where PyTorch and Python call the user's code ------------------------------------------------------------------------


def hears_of_cuda(original: Any) -> Any:
    """For what PyTorch calls with the mode set aside, such as the engine of autograd below ``Tensor.backward``."""

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        mode = mode_here()
        if mode is None or mode.is_in_force():
            return original(*args, **kwargs)
        with mode:
            return original(*args, **kwargs)

    return run


def start_thread(original: Any) -> Any:
    """``threading.Thread.start``."""

    @functools.wraps(original)
    def start(self: Any) -> None:
        if not any_open():
            original(self)
            return
        own = self.__dict__.get("run")
        run = current().run_inside(self.run)

        def once() -> None:
            if own is None:
                del self.run
            else:
                self.run = own
            run()

        self.run = once
        original(self)

    return start
