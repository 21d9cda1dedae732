"""Writes one LLVM function of floating-point registers, as text."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def literal(value: float, llvm_type: str) -> str:
    """A floating constant as LLVM reads it: the bits of a double, rounded to float first where the type is float."""
    if llvm_type == "float":
        value = struct.unpack("f", struct.pack("f", value))[0] if abs(value) < 3.5e38 else value
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


class Body:
    """The instructions of a function, from top to bottom.

    Args:
        kind: of its numbers, ``float`` or ``double``.
    """

    def __init__(self, kind: str = "float") -> None:
        self.lines: list[str] = []
        self.kind = kind

    def op(self, text: str) -> str:
        """Write an instruction; the register that holds its result."""
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {text}")
        return name

    def constant(self, value: float) -> str:
        """A number of the function's kind."""
        return literal(value, self.kind)

    def binary(self, name: str, a: str, b: str) -> str:
        """``fadd``, ``fsub``, ``fmul`` or ``fdiv``."""
        return self.op(f"{name} {self.kind} {a}, {b}")

    def intrinsic(self, name: str, *operands: str) -> str:
        """A call of one of LLVM's functions of numbers of this kind."""
        suffix = "f32" if self.kind == "float" else "f64"
        return self.op(f"call {self.kind} @llvm.{name}.{suffix}({self._listed(operands)})")

    def call(self, name: str, *operands: str) -> str:
        """A call of another function of this kind."""
        return self.op(f"call {self.kind} @{name}({self._listed(operands)})")

    def _listed(self, operands: Sequence[str]) -> str:
        return ", ".join(f"{self.kind} {operand}" for operand in operands)

    def fma(self, a: str, b: str, c: str) -> str:
        """a * b + c, rounded once."""
        return self.intrinsic("fma", a, b, c)

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """Horner's rule, highest power first."""
        value = self.constant(coefficients[0])
        for coefficient in coefficients[1:]:
            value = self.fma(value, x, self.constant(coefficient))
        return value

    def select(self, condition: str, a: str, b: str, kind: str | None = None) -> str:
        """One of two values."""
        kind = kind or self.kind
        return self.op(f"select i1 {condition}, {kind} {a}, {kind} {b}")

    def compare(self, predicate: str, a: str, b: str) -> str:
        """A comparison."""
        return self.op(f"fcmp {predicate} {self.kind} {a}, {b}")

    def clamp(self, x: str, low: float, high: float) -> str:
        """``x`` between two bounds; a NaN stays one."""
        least, most = self.constant(low), self.constant(high)
        return self.select(
            self.compare("ogt", x, most), most, self.select(self.compare("olt", x, least), least, x)
        )

    def function(self, name: str, result: str, kind: str | None = None, *, parameters: str = "x") -> str:
        """The text of the whole function; each letter of ``parameters`` is one of its numbers."""
        body, given = "\n".join(self.lines), self._listed([f"%{letter}" for letter in parameters])
        head = f"define internal {kind or self.kind} @{name}({given}) alwaysinline nounwind"
        return f"{head} {{\n{body}\n  ret {kind or self.kind} {result}\n}}\n"
