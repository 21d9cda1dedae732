"""Reductions whose combining function is one instruction that LLVM can vectorise by itself.

The result so far is one variable; LLVM makes several of it, kept in vector registers, and combines them after the loop.
It does so for sums that may be split, and for extremes of integers and of floats that are known not to be NaN: so a NaN
is left out of the extreme, and what it means for the result is kept in a second variable.
"""

from __future__ import annotations

from typing import Protocol

from flroute.reference_vendor.triton_cpu.emit import FunctionWriter
from flroute.reference_vendor.triton_cpu.function_text import literal
from flroute.reference_vendor.triton_cpu.ttir import Block
from flroute.reference_vendor.triton_cpu.types import Type


class Running(Protocol):
    """A result in the making."""

    def start(self) -> None:
        """Nothing is combined yet."""

    def take(self, value: str) -> None:
        """Combine with one more element."""

    def result(self) -> str:
        """The register that holds what was combined."""


def running_for(region: list[Block], kind: Type, write: FunctionWriter) -> Running | None:
    """How to combine in one variable, if the combining function is one instruction and LLVM knows how to split it."""
    ops = region[0].ops
    name = ops[0].name.removeprefix("arith.") if len(ops) == 2 else ""
    if name in {"addf", "addi"} and kind.element in {"f32", "f64", "i32", "i64"}:
        return _Sum(write, kind)
    if name in _INTEGER_EXTREMES and kind.element in {"i32", "i64"}:
        return _IntegerExtreme(write, kind, name)
    if name in _FLOAT_EXTREMES and kind.is_float:
        return _FloatExtreme(write, kind, name)
    return None


class _Variable:
    """A variable on the stack, which LLVM turns into registers."""

    def __init__(self, write: FunctionWriter, llvm_type: str) -> None:
        self.write, self.type, self.slot = write, llvm_type, write.slot(llvm_type)

    def get(self) -> str:
        return self.write.op(f"load {self.type}, ptr {self.slot}")

    def set(self, value: str) -> None:
        self.write.emit(f"store {self.type} {value}, ptr {self.slot}")


class _Sum:
    def __init__(self, write: FunctionWriter, kind: Type) -> None:
        self.write, self.total = write, _Variable(write, kind.register)
        self.zero, self.add = ("-0.0", "fadd reassoc") if kind.is_float else ("0", "add")

    def start(self) -> None:
        self.total.set(self.zero)

    def take(self, value: str) -> None:
        so_far = self.total.get()
        self.total.set(self.write.op(f"{self.add} {self.total.type} {so_far}, {value}"))

    def result(self) -> str:
        return self.total.get()


_INTEGER_EXTREMES = {"maxsi": "smax", "minsi": "smin", "maxui": "umax", "minui": "umin"}


class _IntegerExtreme:
    def __init__(self, write: FunctionWriter, kind: Type, name: str) -> None:
        self.write, self.best, self.intrinsic = (
            write,
            _Variable(write, kind.register),
            _INTEGER_EXTREMES[name],
        )
        half = 1 << (kind.bits - 1)
        self.least = {"maxsi": -half, "minsi": half - 1, "maxui": 0, "minui": -1}[name]

    def start(self) -> None:
        self.best.set(str(self.least))

    def take(self, value: str) -> None:
        kind, so_far = self.best.type, self.best.get()
        self.best.set(
            self.write.op(f"call {kind} @llvm.{self.intrinsic}.{kind}({kind} {so_far}, {kind} {value})")
        )

    def result(self) -> str:
        return self.best.get()


_FLOAT_EXTREMES = {"maxnumf": "maxnum", "minnumf": "minnum", "maximumf": "maxnum", "minimumf": "minnum"}


class _FloatExtreme:
    """``maxnumf`` of NaNs alone is NaN; ``maximumf`` is NaN as soon as there is one."""

    def __init__(self, write: FunctionWriter, kind: Type, name: str) -> None:
        self.write, self.best, self.decisive = write, _Variable(write, kind.register), _Variable(write, "i1")
        self.intrinsic = _FLOAT_EXTREMES[name]
        self.one_is_enough = name in {"maximumf", "minimumf"}
        self.suffix = "f32" if kind.register == "float" else "f64"
        self.least = ""

    def start(self) -> None:
        """LLVM must not see that ``least`` changes no extreme: it would leave elements out by a branch, and not vectorise."""
        kind = self.best.type
        least = literal(float("-inf" if self.intrinsic == "maxnum" else "inf"), kind)
        self.least = self.write.op(f"call {kind} @llvm.arithmetic.fence.{self.suffix}({kind} {least})")
        self.best.set(least)
        self.decisive.set("false")

    def take(self, value: str) -> None:
        w, kind = self.write, self.best.type
        number = w.op(f"fcmp ord {kind} {value}, {value}")
        known = w.op(f"select i1 {number}, {kind} {value}, {kind} {self.least}")
        operands = f"{kind} {self.best.get()}, {kind} {known}"
        self.best.set(w.op(f"call nnan nsz {kind} @llvm.{self.intrinsic}.{self.suffix}({operands})"))
        seen = w.op(f"xor i1 {number}, true") if self.one_is_enough else number
        self.decisive.set(w.op(f"or i1 {self.decisive.get()}, {seen}"))

    def result(self) -> str:
        w, kind, decided = self.write, self.best.type, self.decisive.get()
        nan, best = literal(float("nan"), kind), self.best.get()
        pair = (nan, best) if self.one_is_enough else (best, nan)
        return w.op(f"select i1 {decided}, {kind} {pair[0]}, {kind} {pair[1]}")
