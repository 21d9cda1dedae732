"""Runs compiled kernels: the grid as it is or split over threads, and scratch memory for each of them.

The interpreter's lock is free while a kernel runs. A program writes only what its author tells it to, so results
do not depend on how the grid is split, atomic float sums' rounding excepted.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Sequence
from time import perf_counter

from flroute.reference_vendor.triton_cpu.errors import LaunchError, TritonCpuError
from flroute.reference_vendor.triton_cpu.object_code import Loaded, ObjectCode
from flroute.reference_vendor.triton_cpu.team import team_of

_WORTH_SPLITTING = 100e-6  # seconds of work; waking a thread that sleeps costs 20 to 50 microseconds
_LARGEST = 2**31 - 1
_BUFFERS = threading.local()


def _scratch(size: int) -> int:
    """The address of this thread's scratch memory, at least ``size`` bytes, aligned to a cache line."""
    if getattr(_BUFFERS, "size", -1) < size:
        _BUFFERS.memory = ctypes.create_string_buffer(size + 64)
        _BUFFERS.address = -(-ctypes.addressof(_BUFFERS.memory) // 64) * 64
        _BUFFERS.size = size
    address: int = _BUFFERS.address
    return address


def default_threads() -> int:
    """How many threads PyTorch itself would use; one where it is not loaded."""
    torch = sys.modules.get("torch")
    return 1 if torch is None else torch.get_num_threads()


class Kernel:
    """A compiled kernel. It may be called from several threads at once.

    Args:
        code: its machine code; ``direct.load`` and Triton's ``kernel.warmup`` make it.
    """

    def __init__(self, code: ObjectCode) -> None:
        self.code = code
        self._loaded = Loaded(code)
        self._run = self._loaded.call
        self._scratch = code.scratch
        self._seconds = 0.0  # of one program, measured at the last launch of several

    def __call__(self, programs: int, *arguments: object) -> None:
        """Run programs 0 to ``programs`` - 1 of a grid of one dimension: what ``launch`` does, at half the cost."""
        if programs == 1:
            scratch = _scratch(self._scratch) if self._scratch else 0
            try:
                failed = self._run(0, 1, scratch, 1, 1, 1, 1, *arguments)
            except (TypeError, OverflowError) as error:
                raise self._refusal(error, arguments) from None
            if failed:
                raise self._assertion(failed)
        else:
            self.launch((programs,), arguments, default_threads())

    def launch(self, grid: Sequence[int], arguments: Sequence[object], threads: int = 1) -> None:
        """Run every program of the grid and return when all are done.

        Args:
            grid: one to three sizes.
            arguments: in the order of the kernel's parameters, without its constants; for a pointer an address, or an
                ndarray. The caller vouches for dtype, layout and size of what it points to.
            threads: how many may work at once; fewer do if there is little to do.

        Raises:
            LaunchError: a grid or argument that the kernel cannot take; nothing ran.
            TritonCpuError: a ``device_assert`` failed.
        """
        x, y, z = (*grid, 1, 1)[:3]
        if not (0 < x <= _LARGEST and 0 < y <= _LARGEST and 0 < z <= _LARGEST):
            if min(x, y, z) == 0 and max(x, y, z) <= _LARGEST:
                return
            raise LaunchError(
                f"kernel {self.code.name}: the grid {tuple(grid)} is out of range; each size is from 0 to {_LARGEST}"
            )
        count = x * y * z
        if threads == 1 or count == 1:
            self._start(0, 1, count, (x, y, z), arguments)
            return
        begin = perf_counter()
        if self._seconds * count > _WORTH_SPLITTING:
            threads = min(threads, count)
            self._start(team_of(threads).address, threads, count, (x, y, z), arguments)
        else:
            threads = 1
            self._start(0, 1, count, (x, y, z), arguments)
        self._seconds = (perf_counter() - begin) * threads / count

    def _start(
        self, team: int, threads: int, count: int, grid: tuple[int, int, int], arguments: Sequence[object]
    ) -> None:
        scratch = _scratch(self._scratch * threads) if self._scratch else 0
        try:
            failed = self._run(team, threads, scratch, count, *grid, *arguments)
        except (TypeError, OverflowError) as error:
            raise self._refusal(error, arguments) from None
        if failed:
            raise self._assertion(failed)

    def _assertion(self, number: int) -> TritonCpuError:
        return TritonCpuError(
            f"kernel {self.code.name}: device_assert failed at {self.code.assertions[number - 1]}"
        )

    def _refusal(self, error: Exception, arguments: Sequence[object]) -> LaunchError:
        kinds = ", ".join(map(str, self.code.arguments))
        given = ", ".join(type(argument).__name__ for argument in arguments)
        return LaunchError(f"kernel {self.code.name}: {error}; it takes ({kinds}) and was given ({given})")
