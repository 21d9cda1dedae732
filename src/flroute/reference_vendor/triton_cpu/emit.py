"""Writes LLVM IR as text: fresh names, labels, loops, and the metadata that says which loops have independent iterations.

Operands are strings: a register (``%t7``) or an integer literal. Arithmetic on literals is folded here, which keeps
the text short; everything else is left to LLVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

LoopKind = Literal["plain", "parallel", "running"]
Index = tuple[str, ...]  # one i64 operand for each axis


def _literal(operand: str) -> int | None:
    return int(operand) if operand.lstrip("-").isdigit() else None


class FunctionWriter:
    """The body of one LLVM function, written from top to bottom."""

    def __init__(self) -> None:
        self.entry: list[str] = []  # allocas, which belong before everything else
        self.lines: list[str] = []
        self.metadata = [
            '!0 = !{!"llvm.loop.unroll.disable"}',
            '!1 = !{!"llvm.loop.interleave.count", i32 4}',
        ]
        self.globals: list[str] = []
        self.block = "entry"
        self._names = 0
        self._access_groups: tuple[str, ...] = ()
        self._access_lists: dict[tuple[str, ...], str] = {}
        self._positions: dict[tuple[tuple[int, ...], Index], str] = {}  # of indices that were made of them

    # names and lines

    def name(self) -> str:
        """A fresh register."""
        self._names += 1
        return f"%t{self._names}"

    def label(self) -> str:
        """A fresh label."""
        self._names += 1
        return f"b{self._names}"

    def emit(self, line: str) -> None:
        """Write one line."""
        self.lines.append(f"  {line}")

    def op(self, text: str) -> str:
        """Write an instruction; the register that holds its result."""
        name = self.name()
        self.emit(f"{name} = {text}")
        return name

    def slot(self, llvm_type: str) -> str:
        """A variable of the function's frame; LLVM turns it into registers."""
        name = self.name()
        self.entry.append(f"  {name} = alloca {llvm_type}")
        return name

    # blocks

    def place(self, label: str) -> None:
        """Begin a block."""
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str, metadata: str = "") -> None:
        """End a block by going to another."""
        self.emit(f"br label %{label}{metadata}")

    def branch(self, condition: str, then: str, otherwise: str) -> None:
        """End a block by going to one of two."""
        self.emit(f"br i1 {condition}, label %{then}, label %{otherwise}")

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """What is written inside runs only if the condition holds."""
        inside, after = self.label(), self.label()
        self.branch(condition, inside, after)
        self.place(inside)
        yield
        self.jump(after)
        self.place(after)

    def loop(
        self, start: str, stop: str, body: Callable[[str], None], *, kind: LoopKind = "plain", step: int = 1
    ) -> None:
        """``for i in range(start, stop, step): body(i)``.

        ``"parallel"``: no iteration depends on another, though LLVM could not tell from the pointers. ``"running"``: what
        is carried from one iteration to the next may be split into as many as LLVM likes.
        """
        first, last = _literal(start), _literal(stop)
        if first is not None and last is not None and last - first <= step:
            if last > first:
                body(start)
            return
        header, inside, latch, after = (self.label() for _ in range(4))
        before, counter, following = self.block, self.name(), self.name()
        groups = self._access_groups
        properties = ["!0"] if kind == "running" else ["!0", "!1"]
        if kind == "parallel":
            group = self._node("distinct !{}")
            self._access_groups = (*groups, group)
            properties.append(self._node(f'!{{!"llvm.loop.parallel_accesses", {group}}}'))
        self.jump(header)
        self.place(header)
        self.emit(f"{counter} = phi i64 [{start}, %{before}], [{following}, %{latch}]")
        self.branch(self.op(f"icmp slt i64 {counter}, {stop}"), inside, after)
        self.place(inside)
        body(counter)
        self.jump(latch)
        self.place(latch)
        self.emit(f"{following} = add nuw nsw i64 {counter}, {step}")
        identity = f"!{len(self.metadata)}"
        self.metadata.append(f"{identity} = distinct !{{{identity}, {', '.join(properties)}}}")
        self.jump(header, f", !llvm.loop {identity}")
        self.place(after)
        self._access_groups = groups

    def _node(self, text: str) -> str:
        name = f"!{len(self.metadata)}"
        self.metadata.append(f"{name} = {text}")
        return name

    # memory

    def _access(self) -> str:
        groups = self._access_groups
        if not groups:
            return ""
        if groups not in self._access_lists:
            self._access_lists[groups] = (
                groups[0] if len(groups) == 1 else self._node(f"!{{{', '.join(groups)}}}")
            )
        return f", !llvm.access.group {self._access_lists[groups]}"

    def load(self, llvm_type: str, pointer: str, align: int) -> str:
        """Read memory; within a parallel loop, marked as its own."""
        return self.op(f"load {llvm_type}, ptr {pointer}, align {align}{self._access()}")

    def store(self, llvm_type: str, value: str, pointer: str, align: int) -> None:
        """Write memory; within a parallel loop, marked as its own."""
        self.emit(f"store {llvm_type} {value}, ptr {pointer}, align {align}{self._access()}")

    def element(self, llvm_type: str, base: str, index: str) -> str:
        """The address of an element."""
        return (
            base if index == "0" else self.op(f"getelementptr inbounds {llvm_type}, ptr {base}, i64 {index}")
        )

    def bfloat16(self, register: str) -> str:
        """The 16 bits of a float32 register that holds a bfloat16 number: no rounding, and a NaN keeps its bits."""
        bits = self.op(f"bitcast float {register} to i32")
        return self.op(f"trunc i32 {self.op(f'lshr i32 {bits}, 16')} to i16")

    # 64-bit index arithmetic; nsw, since an address that wraps is not one

    def add(self, a: str, b: str) -> str:
        """The sum."""
        x, y = _literal(a), _literal(b)
        if x is not None and y is not None:
            return str(x + y)
        if x == 0:
            return b
        return a if y == 0 else self.op(f"add nsw i64 {a}, {b}")

    def sub(self, a: str, b: str) -> str:
        """The difference."""
        x, y = _literal(a), _literal(b)
        if x is not None and y is not None:
            return str(x - y)
        return a if y == 0 else self.op(f"sub nsw i64 {a}, {b}")

    def mul(self, a: str, b: str) -> str:
        """The product."""
        x, y = _literal(a), _literal(b)
        if x is not None and y is not None:
            return str(x * y)
        if x == 0 or y == 0:
            return "0"
        if x == 1:
            return b
        return a if y == 1 else self.op(f"mul nsw i64 {a}, {b}")

    def clamp(self, value: str, low: int, high: int) -> str:
        """The value, kept between two bounds."""
        known = _literal(value)
        if known is not None:
            return str(min(max(known, low), high))
        raised = self.op(f"call i64 @llvm.smax.i64(i64 {value}, i64 {low})")
        return self.op(f"call i64 @llvm.smin.i64(i64 {raised}, i64 {high})")

    def minimum(self, a: str, b: str) -> str:
        """The smaller one."""
        x, y = _literal(a), _literal(b)
        if x is not None and y is not None:
            return str(min(x, y))
        return a if a == b else self.op(f"call i64 @llvm.smin.i64(i64 {a}, i64 {b})")

    def linear(self, shape: tuple[int, ...], index: Index) -> str:
        """The row-major position of an index."""
        if (shape, index) in self._positions:
            return self._positions[shape, index]
        position = "0"
        for size, i in zip(shape, index, strict=True):
            position = self.add(self.mul(position, str(size)), i)
        return position

    def unravel(self, shape: tuple[int, ...], position: str) -> Index:
        """The index of a row-major position; sizes are powers of two, so shifts and masks do."""
        index: list[str] = []
        known, whole = _literal(position), position
        for axis in reversed(range(len(shape))):
            size = shape[axis]
            if known is not None:
                index.append(str(known % size))
                known //= size
                continue
            if size == 1:
                index.append("0")
                continue
            index.append(
                self.op(f"and i64 {position}, {size - 1}") if any(s > 1 for s in shape[:axis]) else position
            )
            position = self.op(f"lshr i64 {position}, {size.bit_length() - 1}")
        found = tuple(reversed(index))
        self._positions[shape, found] = whole
        return found

    def string(self, text: str) -> str:
        """A zero-terminated constant."""
        data = text.encode() + b"\0"
        name = f"@text{len(self.globals)}"
        escaped = "".join(f"\\{byte:02X}" for byte in data)
        self.globals.append(f'{name} = private constant [{len(data)} x i8] c"{escaped}"')
        return name
