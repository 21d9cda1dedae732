"""Runs compiled kernels: arguments to C, the grid split over threads, scratch memory for each thread.

``ctypes`` drops the interpreter's lock while a kernel runs. A program writes only what its author tells it to, so results
do not depend on how the grid is split, atomic float sums' rounding excepted.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from flroute.reference_vendor.triton_cpu.compiler import Loaded, ObjectCode
from flroute.reference_vendor.triton_cpu.errors import LaunchError, TritonCpuError

_WORTH_SPLITTING = 100e-6  # seconds of work; waking a thread costs about 20 microseconds
_LARGEST = 2**31 - 1
_C_TYPES = {
    "ptr": ctypes.c_void_p, "i1": ctypes.c_uint8, "i8": ctypes.c_int8, "i16": ctypes.c_int16, "i32": ctypes.c_int32,
    "i64": ctypes.c_int64, "float": ctypes.c_float, "double": ctypes.c_double,
}  # fmt: skip
_BUFFERS = threading.local()
_POOL_LOCK = threading.Lock()
_pool: tuple[int, ThreadPoolExecutor] | None = None


def _forget_pool() -> None:
    """A forked child has none of its parent's threads."""
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_pool)


def _workers(threads: int) -> ThreadPoolExecutor:
    global _pool
    with _POOL_LOCK:
        if _pool is None or _pool[0] < threads:
            _pool = (threads, ThreadPoolExecutor(threads, thread_name_prefix="triton-cpu"))
        return _pool[1]


def _scratch(size: int) -> int:
    """The address of this thread's scratch memory, at least ``size`` bytes, aligned to a cache line."""
    if getattr(_BUFFERS, "size", -1) < size:
        _BUFFERS.memory = ctypes.create_string_buffer(size + 64)
        _BUFFERS.address = -(-ctypes.addressof(_BUFFERS.memory) // 64) * 64
        _BUFFERS.size = size
    address: int = _BUFFERS.address
    return address


class Kernel:
    """A compiled kernel; ``launch`` runs it on a grid with raw arguments (addresses and numbers)."""

    def __init__(self, code: ObjectCode) -> None:
        self.code = code
        self._loaded = Loaded(code)
        kinds = [_C_TYPES[kind.element if kind.element == "i1" else kind.register] for kind in code.arguments]
        tail = [
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_int32,
            ctypes.c_int32,
            ctypes.c_int32,
            ctypes.c_void_p,
        ]
        self._call = ctypes.CFUNCTYPE(None, *kinds, *tail)(self._loaded.address)
        self._seconds = 0.0  # of one program, measured at the last launch in one thread

    def launch(self, grid: Sequence[int], arguments: Sequence[object], threads: int = 1) -> None:
        """Run every program of the grid and return when all are done."""
        x, y, z = (*grid, 1, 1)[:3]
        if not (0 < x <= _LARGEST and 0 < y <= _LARGEST and 0 < z <= _LARGEST):
            if min(x, y, z) == 0 and max(x, y, z) <= _LARGEST:
                return
            raise LaunchError(
                f"kernel {self.code.name}: the grid {tuple(grid)} is out of range; each size is from 0 to {_LARGEST}"
            )
        count = x * y * z
        try:
            if threads > 1 and count > 1 and self._seconds * count > _WORTH_SPLITTING:
                self._split(count, (x, y, z), arguments, min(threads, count))
            else:
                start = perf_counter()
                self._run(0, count, (x, y, z), arguments)
                self._seconds = (perf_counter() - start) / count
        except ctypes.ArgumentError as error:
            kinds = ", ".join(map(str, self.code.arguments))
            raise LaunchError(f"kernel {self.code.name}: {error}; it takes ({kinds})") from None

    def _run(self, first: int, last: int, grid: tuple[int, int, int], arguments: Sequence[object]) -> None:
        scratch = _scratch(self.code.scratch)
        if not self.code.assertions:
            self._call(*arguments, first, last, *grid, scratch)
            return
        status = ctypes.c_int64.from_address(scratch)
        status.value = 0
        self._call(*arguments, first, last, *grid, scratch)
        if status.value:
            raise TritonCpuError(
                f"kernel {self.code.name}: device_assert failed at {self.code.assertions[status.value - 1]}"
            )

    def _split(
        self, count: int, grid: tuple[int, int, int], arguments: Sequence[object], threads: int
    ) -> None:
        """Equal runs of programs, one for each thread; the caller's thread takes the first."""
        bounds = [count * i // threads for i in range(threads + 1)]
        pool = _workers(threads - 1)
        waiting = [
            pool.submit(self._run, bounds[i], bounds[i + 1], grid, arguments) for i in range(1, threads)
        ]
        try:
            self._run(0, bounds[1], grid, arguments)
        finally:
            for future in waiting:
                future.exception()  # every thread is done with the memory before anyone goes on
        for future in waiting:
            future.result()
