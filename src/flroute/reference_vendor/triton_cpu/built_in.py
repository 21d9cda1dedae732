"""A compiled kernel as a built-in function of Python's: what its code calls, and the function object made of it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np

HEAD = object.__basicsize__  # bytes at the start of every object; its type comes last in them
_METH_FASTCALL = 0x0080
PYTHON = {  # functions of CPython's stable interface: result, parameters
    "PyErr_BadArgument": ("i32", ""),
    "PyErr_Occurred": ("ptr", ""),
    "PyEval_RestoreThread": ("void", "ptr"),
    "PyEval_SaveThread": ("ptr", ""),
    "PyFloat_AsDouble": ("double", "ptr"),
    "PyLong_AsLongLong": ("i64", "ptr"),
    "PyLong_AsLongLongAndOverflow": ("i64", "ptr, ptr"),
    "PyLong_AsUnsignedLongLong": ("i64", "ptr"),
    "PyLong_AsUnsignedLongLongMask": ("i64", "ptr"),
    "PyLong_FromLongLong": ("ptr", "i64"),
}


def entry_name(kernel: str) -> str:
    """The symbol of a kernel's entry for Python."""
    return f"{kernel}.python"


class _MethodDefinition(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@cache
def resolve_symbols() -> None:
    """Tell LLVM where CPython's functions are, and make sure that an ndarray begins as the code above takes it to."""
    for name in PYTHON:
        address = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
        llvm.add_symbol(name, address)
    array = np.zeros(1)
    kind, data = (ctypes.c_size_t.from_address(id(array) + place).value for place in (HEAD - 8, HEAD))
    if (kind, data) != (id(np.ndarray), array.ctypes.data):
        raise ImportError(
            f"numpy {np.__version__}: an ndarray does not begin with its type and its data's address"
        )


def as_builtin(address: int, name: str) -> tuple[Callable[..., int], Any]:
    """The entry at an address as a built-in function, and what must live as long as it does."""
    definition = _MethodDefinition(name.encode(), address, _METH_FASTCALL, None)
    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    make = prototype(("PyCFunction_NewEx", ctypes.pythonapi))
    return make(ctypes.addressof(definition), np.ndarray, None), definition
