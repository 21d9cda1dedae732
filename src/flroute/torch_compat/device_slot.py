"""The one slot for out-of-tree devices, PrivateUse1: its name, its seeds, and its guard in C++.

The guard: c10/core/impl/DeviceGuardImplInterface.h.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.utils.backend_registration as _registration

from flroute.errors import CompatibilityError
from flroute.torch_compat.virtual_tables import LIBRARIES, VirtualTable, found


def device_owner() -> str:
    """The name PrivateUse1 carries: ``privateuseone`` while nobody claimed it."""
    return str(torch._C._get_privateuse1_backend_name())


def register_device(name: str, module: Any, submodules: Mapping[str, Any]) -> None:
    """Give PrivateUse1 the name ``name`` with ``module`` as ``torch.<name>``, and its parts.

    Raises:
        CompatibilityError: another package already owns PrivateUse1 in this process.
    """
    owner = device_owner()
    if owner != "privateuseone":
        raise CompatibilityError(
            f"PyTorch has one slot for out-of-tree devices per process (PrivateUse1) and {owner!r} already holds it, "
            f"so flroute cannot register {name!r}. Run flroute in a process that does not load {owner!r}: "
            f"TORCH_DEVICE_BACKEND_AUTOLOAD=0 stops PyTorch from loading device packages by itself."
        )
    _registration._setup_privateuseone_for_python_backend(name, backend_module=module)
    for (
        part,
        submodule,
    ) in submodules.items():  # else `import torch.fl.memory` would run its file a second time
        sys.modules[f"torch.{name}.{part}"] = submodule


def seeding_everything(code: Any) -> bool:
    """Whether ``code`` is the code object through which ``torch.manual_seed`` seeds every device."""
    return code is torch.random._seed_custom_device.__code__


def counts_offsets(code: Any) -> bool:
    """Whether ``code`` is where DTensor reads a device's random state, to go on with a state whose offset it has moved."""
    random = sys.modules.get("torch.distributed.tensor._random")
    asks = getattr(getattr(random, "OffsetBasedRNGTracker", None), "_get_device_state", None)
    return asks is not None and code is asks.__code__


PRIVATEUSE1 = 20
"""c10::DeviceType::PrivateUse1."""
_REGISTRY_SYMBOL = "_ZN3c104impl26device_guard_impl_registryE"
_SLOT_GET_DEVICE, _SLOT_SET_DEVICE, _SLOT_UNCHECKED_SET_DEVICE, _SLOT_EXCHANGE_STREAM = 2, 3, 4, 9


class DeviceGuardPatch:
    """Replaces four slots of the device guard's C++ vtable.

    PyTorch's Python device guard answers ``setDevice``, ``uncheckedSetDevice`` and ``exchangeStream`` by calling into
    Python, inside noexcept destructors: with a Python error pending (a kernel that raises in backward under a
    TorchDispatchMode) that ends the process. The host guard's own C++ no-ops take their place, and ``getDevice``
    answers with flroute's current device, so that a bare ``"fl"`` means the same everywhere.
    """

    def __init__(self, current_device: Callable[[], int]) -> None:
        library = ctypes.CDLL(str(LIBRARIES / "libc10.so"))
        registry = (ctypes.c_void_p * (PRIVATEUSE1 + 1)).in_dll(library, _REGISTRY_SYMBOL)
        guard, host_guard = (VirtualTable(found(registry[i], "device guard")) for i in (PRIVATEUSE1, 0))
        no_ops = (_SLOT_SET_DEVICE, _SLOT_UNCHECKED_SET_DEVICE, _SLOT_EXCHANGE_STREAM)
        prototype = ctypes.CFUNCTYPE(ctypes.c_uint16, ctypes.c_void_p)  # c10::Device: int8 type, int8 index
        self._get_device = prototype(lambda _self: PRIVATEUSE1 | current_device() << 8)
        answer = ctypes.cast(self._get_device, ctypes.c_void_p).value
        self._table = guard.changed({**{slot: host_guard[slot] for slot in no_ops}, _SLOT_GET_DEVICE: answer})
        self.install, self.remove = self._table.install, self._table.remove
