"""The memory that PyTorch's C++ allocates for ``pin_memory=True``: aten/src/ATen/detail/AcceleratorHooksInterface.h."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from flroute.torch_compat.virtual_tables import LIBRARIES, VirtualTable, found

_HOOKS = "_ZN2at6detail19getPrivateUse1HooksEv"  # at::detail::getPrivateUse1Hooks()
_HOST_ALLOCATOR = "_ZN3c1022GetDefaultCPUAllocatorEv"  # c10::GetDefaultCPUAllocator()
_SLOT_GET_PINNED_ALLOCATOR = 12
_STORAGE_WORDS = 12
"""How far into a StorageImpl (c10/core/StorageImpl.h) its allocator is looked for."""


def _call(library: str, symbol: str) -> int:
    function = getattr(ctypes.CDLL(str(LIBRARIES / library)), symbol)
    function.restype = ctypes.c_void_p
    return found(function(), symbol)


class PinnedMemoryPatch:
    """Has PyTorch's hooks answer with an allocator for pinned memory; those written in Python cannot.

    The allocator is the host's own under another address: it has no state, only virtual functions. By the address, which
    each storage keeps, memory that was asked for as pinned is known again.
    """

    def __init__(self) -> None:
        host = VirtualTable(_call("libc10.so", _HOST_ALLOCATOR))
        self._allocator = (ctypes.c_void_p * 2)(host.address)
        self._address = ctypes.addressof(self._allocator)
        self._answer = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _self: self._address)
        answer = ctypes.cast(self._answer, ctypes.c_void_p).value
        hooks = VirtualTable(_call("libtorch_cpu.so", _HOOKS))
        self._table = hooks.changed({_SLOT_GET_PINNED_ALLOCATOR: answer})
        self.install, self.remove = self._table.install, self._table.remove
        self._word: int | None = None

    def works(self) -> bool:
        """The proof: PyTorch asks, and a storage's allocator is found by looking."""
        try:
            pinned = torch.empty(1, device="cpu", pin_memory=True)
        except RuntimeError:
            return False
        at = [i for i, word in enumerate(_words_of(pinned)) if word == self._address]
        self._word = at[0] if len(at) == 1 else None
        return self._word is not None and not self.is_pinned(torch.empty(1, device="cpu"))

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether the memory of a host tensor was allocated with ``pin_memory=True``."""
        return self._word is not None and _words_of(tensor)[self._word] == self._address


def _words_of(tensor: torch.Tensor) -> Any:
    return (ctypes.c_uint64 * _STORAGE_WORDS).from_address(tensor.untyped_storage()._cdata)
