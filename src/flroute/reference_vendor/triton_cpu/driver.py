"""Triton's back end and driver for this CPU, and the scope in which Triton sees them.

Triton asks one process-wide object for its one active driver. Inside ``active()``, and in that thread alone, the answer is
this driver; outside, and for every other thread, it is what it always was, so that a GPU's kernels never notice.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from types import ModuleType
from typing import Any

import triton
from triton import backends
from triton._C.libtriton import ir, passes
from triton.backends.compiler import BaseBackend, GPUTarget, Language
from triton.backends.driver import DriverBase
from triton.language.extra.cuda import libdevice
from triton.runtime.driver import DriverConfig
from triton.runtime.driver import driver as triton_drivers

from flroute.reference_vendor.triton_cpu.compiler import compile_ttir
from flroute.reference_vendor.triton_cpu.devices import ADDRESS
from flroute.reference_vendor.triton_cpu.errors import LaunchError, UnsupportedKernelError, VersionError
from flroute.reference_vendor.triton_cpu.launcher import Kernel, default_threads
from flroute.reference_vendor.triton_cpu.object_code import ObjectCode, version

TESTED = ("3.9",)  # Triton's minor releases whose text format the reader is tested with
BACKEND = "flroute_cpu"
REFUSED = b"refused "
TARGET = GPUTarget(BACKEND, "host", 1)

if ".".join(triton.__version__.split(".")[:2]) not in TESTED:
    raise VersionError(
        f"Triton {triton.__version__} is installed; kernels are compiled for the CPU with {', '.join(TESTED)}, "
        "since the text of its tensor IR changes between releases"
    )


@dataclass(frozen=True)
class Options:
    """What Triton's front end reads of a target; the numbers of warps and stages have no meaning here."""

    num_warps: int = 1
    num_ctas: int = 1
    num_stages: int = 1
    warp_size: int = 1
    enable_fp_fusion: bool = True
    launch_cooperative_grid: bool = False
    launch_pdl: bool = False
    extern_libs: None = None
    debug: bool = False
    sanitize_overflow: bool = False
    arch: str = "host"
    supported_fp8_dtypes: tuple[str, ...] = ()
    deprecated_fp8_dot_operand_dtypes: tuple[str, ...] = ()
    default_dot_input_precision: str = "ieee"
    allowed_dot_input_precisions: tuple[str, ...] = ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")
    max_num_imprecise_acc_default: int = 0
    backend_name: str = BACKEND
    instrumentation_mode: str = ""
    fpsan_homomorphic_casts: bool = False
    ir_override: str | None = None
    shared: int = 0
    maxnreg: int | None = None

    def hash(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()


class Backend(BaseBackend):  # type: ignore[misc]
    """Triton's compilation stages: its tensor IR, then machine code."""

    binary_ext = "obj"

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return bool(target.backend == BACKEND)

    def hash(self) -> str:
        return version()

    def parse_options(self, options: Mapping[str, Any]) -> Options:
        return Options(
            **{name: value for name, value in options.items() if name in Options.__dataclass_fields__}
        )

    def pack_metadata(self, metadata: object) -> tuple[()]:
        return ()

    def get_codegen_implementation(self, options: Options) -> dict[str, Callable[..., Any]]:
        return {"min_dot_size": lambda *_: (1, 1, 1), "convert_custom_types": lambda *_, **__: None}

    def get_module_map(self) -> dict[str, ModuleType]:
        return {"triton.language.extra.libdevice": libdevice}

    def load_dialects(self, context: object) -> None:
        """Triton's own dialects are enough."""

    def add_stages(self, stages: dict[str, Callable[..., Any]], options: Options, language: Language) -> None:
        stages["ttir"] = lambda source, _: optimize(source)
        stages["obj"] = make_object


def optimize(module: Any) -> Any:
    manager = ir.pass_manager(module.context)
    passes.common.add_inliner(manager)
    passes.ttir.add_rewrite_tensor_descriptor_to_pointer(manager)
    passes.common.add_canonicalizer(manager)
    passes.ttir.add_combine(manager)
    passes.ttir.add_reorder_broadcast(manager)
    passes.common.add_cse(manager)
    passes.ttir.add_triton_licm(manager)
    passes.common.add_symbol_dce(manager)
    manager.run(module, "make_ttir")
    return module


def make_object(module: Any, metadata: dict[str, Any]) -> bytes:
    """Machine code, or why there is none.

    The error is raised when the kernel is loaded, by when Triton holds no module any more: a traceback that kept a module
    and its context alive could have both collected at once, in the wrong order.
    """
    metadata.update(name=module.get_entry_func_name(), shared=0)
    try:
        return compile_ttir(str(module)).to_bytes()
    except UnsupportedKernelError as error:
        return REFUSED + json.dumps([error.op, error.why, error.location]).encode()


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


class Launcher:
    """What Triton calls to run a kernel: it picks the arguments that are not constants, and turns tensors to addresses."""

    def __init__(self, source: Any, metadata: Any) -> None:
        kinds = list(source.signature.values())
        self._source: Any = source
        self._names = list(source.signature)
        self._plain = [i for i, kind in enumerate(kinds) if kind != "constexpr"]
        self._pointers = frozenset(
            i for i, kind in enumerate(kinds) if isinstance(kind, str) and kind.startswith("*")
        )
        nested = [
            self._names[i]
            for i, kind in enumerate(kinds)
            if not isinstance(kind, str) or kind.startswith("tensordesc")
        ]
        if nested:
            raise LaunchError(
                f"kernel {source.fn.__name__}: the arguments {', '.join(nested)} are tuples or host tensor descriptors, "
                "which are not supported"
            )

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
        device = ""
        values = []
        for i in self._plain:
            value = arguments[i]
            if i in self._pointers and value is not None:
                found = "an address" if isinstance(value, int) else value.device.type
                if found != "an address":
                    if device and found != device:
                        raise LaunchError(
                            f"kernel {kernel.code.name}: the argument {self._names[i]} is on {value.device}, "
                            f"others are on {device}; move it first"
                        )
                    device = found
                    value = self._address(kernel, self._names[i], value)
            values.append(value)
        kernel.launch((x, y, z), values, threads=default_threads())

    def _keep_from_unloading(self) -> None:
        """Make Triton's kernel object look as if another process had loaded it: then it does not ask to be unloaded.

        It would ask whatever driver is active when it is collected, and by then that is another driver, or none.
        """
        caches = getattr(self._source.fn, "device_caches", {})
        for kernel in caches[BACKEND][0].values() if BACKEND in caches else ():
            if getattr(kernel, "_run", None) is self:
                kernel._module_pid = None
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

    def get_device_interface(self) -> Any:
        import torch

        return torch.cpu

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


_SCOPE = threading.local()
_LOCK = threading.Lock()
_open = 0


class _ScopedDrivers(DriverConfig):  # type: ignore[misc]
    """Triton's own registry of drivers, but for threads inside ``active()``."""

    @property
    def active(self) -> DriverBase:
        mine: Driver | None = getattr(_SCOPE, "driver", None)
        return super().active if mine is None else mine


@contextmanager
def active() -> Iterator[None]:
    """In this thread, Triton compiles for and launches on this CPU. Scopes nest."""
    global _open
    with _LOCK:
        _open += 1
        if _open == 1:
            backends.backends[BACKEND] = backends.Backend(compiler=Backend, driver=Driver)
            triton_drivers.__class__ = _ScopedDrivers
    outer = getattr(_SCOPE, "driver", None)
    _SCOPE.driver = Driver()
    try:
        yield
    finally:
        _SCOPE.driver = outer
        with _LOCK:
            _open -= 1
            if _open == 0:
                triton_drivers.__class__ = DriverConfig
                del backends.backends[BACKEND]
