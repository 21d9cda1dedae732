"""C++ objects of PyTorch that get virtual functions of ours: a copy of their table with some slots changed.

For the Itanium C++ ABI, which every PyTorch for Linux and macOS has.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

import torch

from flroute.errors import CompatibilityError
from flroute.torch_compat.names import SUPPORTED, TORCH_VERSION

_SLOTS = 40  # more than any of these classes has; what lies behind a table is only copied
_WORD = ctypes.sizeof(ctypes.c_void_p)
_HEADER = 2  # offset-to-top and type_info precede a table

LIBRARIES = Path(torch.__file__).parent / "lib"


def layouts_are_known() -> bool:
    """Whether the slots that flroute knows are those of this PyTorch: supported releases, Itanium C++ ABI."""
    minor = f"{TORCH_VERSION.major}.{TORCH_VERSION.minor}"
    return os.name == "posix" and minor in SUPPORTED and (LIBRARIES / "libc10.so").exists()


def found(address: int | None, what: str) -> int:
    """``address``, which must be one.

    Raises:
        CompatibilityError: it is null.
    """
    if not address:
        raise CompatibilityError(f"PyTorch {torch.__version__} has no {what} where one is expected")
    return address


class VirtualTable:
    """The table of virtual functions of the C++ object at ``address``."""

    def __init__(self, address: int) -> None:
        self._pointer = ctypes.c_void_p.from_address(address)
        self.address = found(self._pointer.value, "table of virtual functions")

    def __getitem__(self, slot: int) -> int | None:
        return ctypes.c_void_p.from_address(self.address + slot * _WORD).value

    def changed(self, functions: Mapping[int, int | None]) -> ChangedTable:
        """What the object has once ``functions``, by slot, take the place of its own."""
        return ChangedTable(self._pointer, self.address, functions)


class ChangedTable:
    """A table with some slots changed, to be put in the place of an object's own."""

    def __init__(self, pointer: ctypes.c_void_p, original: int, functions: Mapping[int, int | None]) -> None:
        self._pointer, self._original = pointer, original
        table = ctypes.c_void_p * (_SLOTS + _HEADER)
        self._table = table(*table.from_address(original - _HEADER * _WORD))
        for slot, function in functions.items():
            self._table[_HEADER + slot] = function

    def install(self) -> None:
        """Put it in the place of the object's own."""
        self._pointer.value = ctypes.addressof(self._table) + _HEADER * _WORD

    def remove(self) -> None:
        """Put the object's own back."""
        self._pointer.value = self._original
