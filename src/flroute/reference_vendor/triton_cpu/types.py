"""Types of Triton's tensor IR, and how LLVM holds them in registers and in memory.

A half-precision value lives in a register as the float32 that it equals: every operation computes in float32 and
rounds once, which for +, -, *, / and sqrt is the correctly rounded half-precision result (24 >= 2 * 11 + 2).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

_REGISTER = {"f16": "float", "bf16": "float", "f32": "float", "f64": "double"}
_STORAGE = {"f16": "half", "bf16": "i16", "f32": "float", "f64": "double", "i1": "i8"}
_BYTES = {"ptr": 8, "half": 2, "float": 4, "double": 8, "i8": 1, "i16": 2, "i32": 4, "i64": 8}
_INTEGER = re.compile(r"i(1|8|16|32|64)$")


@dataclass(frozen=True)
class Type:
    """A scalar (shape ``()``) or a block of ``element``; ``pointee`` is what an element that is a pointer points to."""

    shape: tuple[int, ...]
    element: str
    pointee: str = ""

    @property
    def is_float(self) -> bool:
        """Whether elements are floating-point numbers."""
        return self.element in _REGISTER

    @property
    def is_integer(self) -> bool:
        """Whether elements are integers or bools."""
        return _INTEGER.match(self.element) is not None

    @property
    def is_supported(self) -> bool:
        """Whether LLVM code for the element type can be written: not the 8-bit floats, for one."""
        return self.is_float or self.is_integer or self.element == "ptr"

    @property
    def bits(self) -> int:
        """The width of an element."""
        return 64 if self.element == "ptr" else int(self.element.lstrip("bfi"))

    @property
    def register(self) -> str:
        """LLVM's type of an element in a register."""
        return _REGISTER.get(self.element, self.element)

    @property
    def storage(self) -> str:
        """LLVM's type of an element in memory."""
        return _STORAGE.get(self.element, self.element)

    @property
    def bytes(self) -> int:
        """The size of an element in memory."""
        return _BYTES[self.storage]

    @property
    def numel(self) -> int:
        """How many elements there are."""
        return prod(self.shape)

    def with_shape(self, shape: tuple[int, ...]) -> Type:
        """The same elements in another shape."""
        return Type(shape, self.element, self.pointee)

    def with_element(self, element: str) -> Type:
        """The same shape of other elements."""
        return Type(self.shape, element)

    @property
    def pointed(self) -> Type:
        """What loading through a block of pointers gives: the same shape of what they point to."""
        return Type(self.shape, "ptr" if self.pointee.startswith("!tt.ptr") else self.pointee)

    def __str__(self) -> str:
        element = f"ptr<{self.pointee}>" if self.element == "ptr" else self.element
        return f"tensor<{'x'.join(map(str, self.shape))}x{element}>" if self.shape else element


def parse_type(text: str) -> Type:
    """One type as Triton prints it: ``i32``, ``!tt.ptr<f32>``, ``tensor<4x8x!tt.ptr<f16>>``."""
    text = text.strip()
    shape: tuple[int, ...] = ()
    block = re.fullmatch(r"tensor<((?:\d+x)+)(.*)>", text)
    if block:
        shape = tuple(int(size) for size in block[1][:-1].split("x"))
        text = block[2].strip()
    pointer = re.fullmatch(r"!tt\.ptr<(.*?)(?:, \d+)?>", text)
    return Type(shape, "ptr", pointer[1]) if pointer else Type(shape, "i64" if text == "index" else text)


def element_of(storage_or_register: str) -> str:
    """The element type that a register of this LLVM type holds without loss."""
    return {"float": "f32", "double": "f64"}.get(storage_or_register, storage_or_register)
