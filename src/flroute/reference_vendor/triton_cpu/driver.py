"""What Triton sees of this CPU when it launches a kernel: a driver, and a launcher for each kernel."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase, decompose_descriptor, expand_signature
from triton.compiler import CompiledKernel

from flroute.reference_vendor.triton_cpu.backend import BACKEND, REFUSED, TARGET
from flroute.reference_vendor.triton_cpu.devices import ADDRESS
from flroute.reference_vendor.triton_cpu.errors import LaunchError, UnsupportedKernelError
from flroute.reference_vendor.triton_cpu.launcher import Kernel, default_threads
from flroute.reference_vendor.triton_cpu.object_code import ObjectCode


class _Utilities:
    @staticmethod
    def get_device_properties(device: object) -> dict[str, int]:
        return {"max_shared_mem": 1 << 30, "multiprocessor_count": os.cpu_count() or 1}

    @staticmethod
    def load_binary(
        name: str, data: bytes, shared: int, device: object
    ) -> tuple[Kernel, Kernel, int, int, int]:
        if data.startswith(REFUSED):
            raise UnsupportedKernelError(*json.loads(data[len(REFUSED) :]))
        kernel = Kernel(ObjectCode.from_bytes(data))
        return kernel, kernel, 0, 0, 1 << 30

    @staticmethod
    def unload_module(module: object) -> None:
        """Machine code goes with the ``Kernel`` that holds it."""


class _NeverUnloaded(CompiledKernel):  # type: ignore[misc]
    """Triton's kernel object, whose machine code goes with the ``Kernel`` that it holds."""

    def __del__(self) -> None:
        """Nothing is asked of a driver."""


Kind = str | tuple["Kind", ...]


def _flat_kinds(named: Iterable[tuple[str, Kind]]) -> Iterator[tuple[str, str]]:
    """The parameters of the compiled kernel: what tuples hold, and a tensor descriptor's tensor, sizes and strides."""
    for name, kind in named:
        if isinstance(kind, tuple):
            yield from _flat_kinds((f"{name}.{i}", part) for i, part in enumerate(kind))
        elif kind.startswith("tensordesc"):
            yield from ((name, part) for part in expand_signature([kind], None, ""))
        elif kind != "constexpr":
            yield name, kind


def _flat(named: tuple[str, Kind], value: Any) -> Iterator[Any]:
    """The values of one parameter's parts, in the order of ``_flat_kinds``."""
    name, kind = named
    if isinstance(kind, tuple):
        for part, inner in zip(kind, value, strict=True):
            yield from _flat((name, part), inner)
    elif kind.startswith("tensordesc"):
        yield from decompose_descriptor(value)
    elif kind != "constexpr":
        yield value


class Launcher:
    """What Triton calls to run a kernel: it picks the arguments that are not constants, and turns tensors to addresses."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self._source: Any = source
        kinds = list(source.signature.items())
        self._nested = any(not isinstance(kind, str) or kind.startswith("tensordesc") for _, kind in kinds)
        self._kinds = kinds
        self._flat = list(_flat_kinds(kinds))
        self._plain = [i for i, (_, kind) in enumerate(kinds) if kind != "constexpr"]
        self._pointers = [(i, name) for i, (name, kind) in enumerate(self._flat) if kind.startswith("*")]

    def __call__(
        self,
        x: int,
        y: int,
        z: int,
        stream: object,
        kernel: Kernel,
        packed: object,
        meta: object,
        enter: object,
        leave: object,
        *arguments: Any,
    ) -> None:
        if self._source is not None:
            self._keep_from_unloading()
        if self._nested:
            values = [value for pair in zip(self._kinds, arguments, strict=True) for value in _flat(*pair)]
        else:
            values = [arguments[i] for i in self._plain]
        device = ""
        for i, name in self._pointers:
            value = values[i]
            if value is None or isinstance(value, int):
                continue
            if device and value.device.type != device:
                raise LaunchError(
                    f"kernel {kernel.code.name}: the argument {name} is on {value.device}, "
                    f"others are on {device}; move it first"
                )
            device = value.device.type
            values[i] = self._address(kernel, name, value)
        kernel.launch((x, y, z), values, threads=default_threads())

    def _keep_from_unloading(self) -> None:
        """Let Triton's kernel object be collected without asking for its module to be unloaded.

        It would ask whatever driver is active by then, which is another one, or none.
        """
        caches = getattr(self._source.fn, "device_caches", {})
        for kernel in caches[BACKEND][0].values() if BACKEND in caches else ():
            if getattr(kernel, "_run", None) is self:
                kernel.__class__ = _NeverUnloaded
        self._source = None

    @staticmethod
    def _address(kernel: Kernel, name: str, tensor: Any) -> int:
        resolve = ADDRESS.get(tensor.device.type)
        if resolve is None:
            known = ", ".join(ADDRESS)
            raise LaunchError(
                f"kernel {kernel.code.name}: the argument {name} is on {tensor.device}, "
                f"whose memory this CPU cannot use; kernels take: {known}"
            )
        return resolve(tensor)


class _Event:
    """A moment, as ``triton.testing.do_bench`` measures with; a launch returns when it is done."""

    def __init__(self, *, enable_timing: bool = False) -> None:
        self._at = 0.0

    def record(self) -> None:
        self._at = perf_counter()

    def elapsed_time(self, later: _Event) -> float:
        return (later._at - self._at) * 1e3


class _DeviceInterface:
    """What Triton's benchmarks ask of ``torch.cuda`` for a GPU; ``torch.cpu``'s events cannot time."""

    Event = _Event

    @staticmethod
    def synchronize() -> None:
        """Every launch has been waited for."""


class Driver(DriverBase):  # type: ignore[misc]
    """This CPU as a device of Triton's; never active on its own account."""

    utils = _Utilities
    launcher_cls = Launcher

    def __init__(self) -> None:
        """There is nothing to open."""

    @classmethod
    def is_active(cls) -> bool:
        return False

    def map_python_to_cpp_type(self, kind: str) -> str:
        return kind

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> str:
        return BACKEND  # a key of Triton's per-device caches that no GPU has

    def set_current_device(self, device: object) -> None:
        """There is one."""

    def get_current_stream(self, device: object = None) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_device_interface(self) -> type[_DeviceInterface]:
        return _DeviceInterface

    def get_empty_cache_for_benchmark(self) -> Any:
        import torch

        return torch.empty(1 << 20, dtype=torch.int)

    def clear_cache(self, cache: Any) -> None:
        cache.zero_()

    def get_benchmarker(self) -> Callable[..., list[float]]:
        return benchmark


def benchmark(call: Callable[[], object], *, quantiles: Sequence[float] = (0.5,), **_: object) -> list[float]:
    """Milliseconds at each quantile of five runs, for ``triton.autotune``."""
    call()
    times = []
    for _run in range(5):
        start = perf_counter()
        call()
        times.append((perf_counter() - start) * 1e3)
    times.sort()
    return [times[min(int(q * len(times)), len(times) - 1)] for q in quantiles]
