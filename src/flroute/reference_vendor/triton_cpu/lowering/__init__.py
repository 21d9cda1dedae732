"""Lowers a kernel in Triton's tensor IR to LLVM IR: one file for each family of ops, ``core`` for what they share."""

from __future__ import annotations

from dataclasses import dataclass

from flroute.reference_vendor.triton_cpu import vector_math
from flroute.reference_vendor.triton_cpu.errors import UnsupportedKernelError
from flroute.reference_vendor.triton_cpu.lowering import (
    control_flow,
    conversions,
    diagnostics,
    dot,
    elementwise,
    libdevice,
    mapping,
    memory,
    reductions,
    shapes,
)
from flroute.reference_vendor.triton_cpu.lowering.core import Lowerer
from flroute.reference_vendor.triton_cpu.lowering.values import scalar
from flroute.reference_vendor.triton_cpu.plan import make_plan
from flroute.reference_vendor.triton_cpu.ttir import Function
from flroute.reference_vendor.triton_cpu.types import Type

__all__ = [
    "Lowered",
    "control_flow",
    "conversions",
    "diagnostics",
    "dot",
    "elementwise",
    "libdevice",
    "lower",
    "mapping",
    "memory",
    "reductions",
    "shapes",
]

_ALIGN = 64  # bytes, of scratch buffers


@dataclass(frozen=True)
class Lowered:
    """LLVM IR of a kernel.

    The entry point takes the kernel's arguments, then ``i64 first, i64 last`` (the programs to run), ``i32`` the grid's
    three sizes, and ``ptr`` scratch memory of ``scratch`` bytes.
    """

    name: str
    arguments: tuple[Type, ...]
    llvm_ir: str
    scratch: int
    assertions: tuple[str, ...]


def lower(function: Function) -> Lowered:
    for argument in function.arguments:
        if not argument.type.is_supported or argument.type.shape:
            raise UnsupportedKernelError(
                "tt.func", f"an argument of type {argument.type} is not supported", ""
            )
    low = Lowerer(make_plan(function))
    low.exit = low.write.label()
    names = [f"%argument{i}" for i in range(len(function.arguments))]
    for argument, name in zip(function.arguments, names, strict=True):
        low.nodes[argument] = scalar(argument.type, elementwise.round_to(low.write, argument.type, name))
        low.nodes[argument].origin = name
    control_flow.lower_function(low, function)
    types = tuple(argument.type for argument in function.arguments)
    offsets, size = [], 0
    for buffer in low.buffers:
        offsets.append(size)
        size += -(-buffer // _ALIGN) * _ALIGN
    program = "\n".join(_program(low, types, names))
    entry = "\n".join(_entry(function.name, types, names, offsets))
    text = "\n".join(
        [
            *low.write.globals,
            *low.declared,
            vector_math.prelude(program),
            program,
            entry,
            *low.write.metadata,
            "",
        ]
    )
    needed = bool(low.assertions) or len(low.buffers) > 1  # the first is for assertions alone
    return Lowered(function.name, types, text, size if needed else 0, tuple(low.assertions))


_COORDINATES = [f"%program{axis}" for axis in range(3)] + [f"%programs{axis}" for axis in range(3)]


def _program(low: Lowerer, types: tuple[Type, ...], names: list[str]) -> list[str]:
    """One program: the function the kernel's author wrote. Scratch buffers are arguments, so that LLVM knows them apart."""
    parameters = [f"{kind.register} {name}" for kind, name in zip(types, names, strict=True)]
    parameters += [f"i32 {name}" for name in _COORDINATES]
    parameters += [f"ptr noalias nocapture %buffer{i}" for i in range(len(low.buffers))]
    head = f"define internal void @program({', '.join(parameters)}) nounwind {{\nentry:"
    return [head, *low.write.entry, *low.write.lines, "  ret void", "}"]


def _entry(name: str, types: tuple[Type, ...], names: list[str], offsets: list[int]) -> list[str]:
    """Runs programs ``first`` to ``last``, numbered with axis 0 fastest."""
    parameters = [
        f"{kind.storage if kind.element == 'i1' else kind.register} {n}"
        for kind, n in zip(types, names, strict=True)
    ]
    parameters += [
        "i64 %first",
        "i64 %last",
        "i32 %programs0",
        "i32 %programs1",
        "i32 %programs2",
        "ptr noalias %scratch",
    ]
    given = [
        f"{kind.register} {n}{'b' if kind.element == 'i1' else ''}"
        for kind, n in zip(types, names, strict=True)
    ]
    given += [f"i32 {coordinate}" for coordinate in _COORDINATES]
    given += [f"ptr %buffer{i}" for i in range(len(offsets))]
    return [
        f'define internal void @"{name}.grid"({", ".join(parameters)}) nounwind {{',
        "entry:",
        *(
            f"  {n}b = trunc i8 {n} to i1"
            for kind, n in zip(types, names, strict=True)
            if kind.element == "i1"
        ),
        *(
            f"  %buffer{i} = getelementptr inbounds i8, ptr %scratch, i64 {offset}"
            for i, offset in enumerate(offsets)
        ),
        "  br label %next",
        "next:",
        "  %number = phi i64 [%first, %entry], [%following, %run]",
        "  %more = icmp slt i64 %number, %last",
        "  br i1 %more, label %run, label %done",
        "run:",
        "  %size0 = zext i32 %programs0 to i64",
        "  %size1 = zext i32 %programs1 to i64",
        "  %wide0 = urem i64 %number, %size0",
        "  %outer = udiv i64 %number, %size0",
        "  %wide1 = urem i64 %outer, %size1",
        "  %wide2 = udiv i64 %outer, %size1",
        *(f"  %program{axis} = trunc i64 %wide{axis} to i32" for axis in range(3)),
        f"  call void @program({', '.join(given)})",
        "  %following = add i64 %number, 1",
        "  br label %next",
        "done:",
        "  ret void",
        "}",
    ]
