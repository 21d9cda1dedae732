"""Raw reads and writes of host memory by address, without a buffer object per tensor.

One ctypes array spans the address space; numpy arrays and struct packs over it cost a third of going through
DLPack or the buffer protocol. Such an array owns nothing and keeps nothing alive.
"""

from __future__ import annotations

import ctypes
from typing import Any

BASE = 4096
"""Offset 0 of ``MEMORY``; numpy reads an address of 0 as "no buffer"."""

MEMORY: Any = (ctypes.c_char * 2**62).from_address(BASE)
"""All memory above ``BASE``: address ``a`` is at offset ``a - BASE``."""

POOLED: Any = (ctypes.c_char * 2**62).from_address(BASE)
"""The same memory, as the base of arrays over a block of a pool: their death gives the block back, so they own it."""
