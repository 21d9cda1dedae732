"""LLVM IR that unpacks Python objects and runs a kernel with them; ``built_in`` makes a function object of it.

``ctypes`` takes a microsecond to pass ten arguments, as long as a small kernel runs. Here the conversions are compiled with
the kernel, as numba does it, and use nothing but CPython's stable interface and the place of an ndarray's first field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flroute.reference_vendor.triton_cpu.built_in import HEAD, PYTHON, entry_name
from flroute.reference_vendor.triton_cpu.types import Type
from flroute.reference_vendor.triton_cpu.vector_math import rounded_to_odd

_LEADING = ("team", "threads", "scratch", "count", "programs0", "programs1", "programs2")


def python_entry(kernel: str, arguments: Sequence[Type], *, asserts: bool, scratch: int) -> str:
    """LLVM IR of ``(team, threads, scratch, count, programs0, programs1, programs2, *arguments) -> status``.

    Runs ``count`` programs: in this thread, or, if ``team`` is a ``team.Team``'s address, in up to so many ``threads``.
    Pointers are addresses or ndarrays, whose first element is meant. The interpreter's lock is released while programs
    run. ``scratch`` is the address of ``scratch`` bytes for each thread. ``status`` is the number of a ``device_assert``
    that failed, 0 if none did.
    """
    out = _Body()
    team, threads, memory, count, *sizes = [out.integer(i) for i in range(len(_LEADING))]
    given = [out.argument(len(_LEADING) + i, kind) for i, kind in enumerate(arguments)]
    given += [f"i32 {out.op(f'trunc i64 {size} to i32')}" for size in sizes]
    team, memory = (out.op(f"inttoptr i64 {address} to ptr") for address in (team, memory))
    launch = [
        f"ptr {team}",
        f"i64 {threads}",
        f'ptr @"{kernel}.share"',
        "ptr %context",
        f"i64 {count}",
        f"ptr {memory}",
    ]
    return f"""
{"".join(f"declare {result} @{name}({parameters})" + chr(10) for name, (result, parameters) in PYTHON.items())}
{_share(kernel, given, asserts=asserts)}
define ptr @"{entry_name(kernel)}"(ptr %array_type, ptr %objects, i64 %count) nounwind {{
entry:
  %overflow = alloca i32
  %context = alloca %context
  %complete = icmp eq i64 %count, {len(_LEADING) + len(arguments)}
  br i1 %complete, label %convert, label %refuse
convert:
{chr(10).join(out.lines)}
  %raised = call ptr @PyErr_Occurred()
  %sound = icmp eq ptr %raised, null
  br i1 %sound, label %check, label %fail
check:
  br i1 {out.fits}, label %run, label %refuse
run:
{_stored([*given, "i64 0"])}
  %thread = call ptr @PyEval_SaveThread()
  %alone = icmp eq ptr {team}, null
  br i1 %alone, label %here, label %together
here:
  call void @"{kernel}.share"(ptr %context, i64 0, i64 {count}, ptr {memory})
  br label %done
together:
  %launch = load ptr, ptr {team}
  call void %launch({", ".join(launch)}, i64 {scratch})
  br label %done
done:
  call void @PyEval_RestoreThread(ptr %thread)
  %status = load i64, ptr %place{len(given)}
  %result = call ptr @PyLong_FromLongLong(i64 %status)
  ret ptr %result
refuse:
  %ignored = call i32 @PyErr_BadArgument()
  ret ptr null
fail:
  ret ptr null
}}
"""


def _stored(values: Sequence[str]) -> str:
    """What a launch's threads are told, in memory: the kernel's arguments, the grid's sizes, and the status."""
    return "\n".join(
        f"  %place{i} = getelementptr %context, ptr %context, i32 0, i32 {i}\n  store {value}, ptr %place{i}"
        for i, value in enumerate(values)
    )


def _share(kernel: str, given: Sequence[str], *, asserts: bool) -> str:
    """What each thread calls: some of the programs, with the arguments from memory."""
    kinds = [value.partition(" ")[0] for value in given]
    loads = "\n".join(
        f"  %place{i} = getelementptr %context, ptr %context, i32 0, i32 {i}\n  %value{i} = load {kind}, ptr %place{i}"
        for i, kind in enumerate(kinds)
    )
    values = [f"{kind} %value{i}" for i, kind in enumerate(kinds)]
    call = ", ".join([*values[:-3], "i64 %first", "i64 %last", *values[-3:], "ptr %scratch"])
    report = f"""  %failed = load i64, ptr %scratch
  %status = getelementptr %context, ptr %context, i32 0, i32 {len(kinds)}
  %before = atomicrmw umax ptr %status, i64 %failed monotonic"""
    return f"""%context = type {{ {", ".join([*kinds, "i64"])} }}
define internal void @"{kernel}.share"(ptr %context, i64 %first, i64 %last, ptr %scratch) nounwind {{
{loads}
{"  store i64 0, ptr %scratch" if asserts else ""}
  call void @"{kernel}.grid"({call})
{report if asserts else ""}
  ret void
}}"""


class _Body:
    """Writes the conversions, straight-line code: an error is looked for once, at the end."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.fits = "true"  # a register: whether every integer so far fits its type

    def op(self, text: str) -> str:
        """Write an instruction; the register that holds its result."""
        register = f"%r{len(self.lines)}"
        self.lines.append(f"  {register} = {text}")
        return register

    def object(self, position: int) -> str:
        """The object at a position among the arguments."""
        slot = self.op(f"getelementptr inbounds ptr, ptr %objects, i64 {position}")
        return self.op(f"load ptr, ptr {slot}")

    def integer(self, position: int) -> str:
        """An int from -2**63 to 2**63 - 1; beyond, Python raises."""
        return self.op(f"call i64 @PyLong_AsLongLong(ptr {self.object(position)})")

    def long(self, position: int) -> str:
        """An int from -2**63 to 2**64 - 1, signed and unsigned alike; beyond, Python raises."""
        item = self.object(position)
        signed = self.op(f"call i64 @PyLong_AsLongLongAndOverflow(ptr {item}, ptr %overflow)")
        beyond = self.op(f"icmp ne i32 {self.op('load i32, ptr %overflow')}, 0")
        return self.either(
            "i64", beyond, lambda: self.op(f"call i64 @PyLong_AsUnsignedLongLong(ptr {item})"), lambda: signed
        )

    def argument(self, position: int, kind: Type) -> str:
        """An argument of the kernel's, with its type before it."""
        if kind.element == "ptr":
            return f"ptr {self.pointer(position)}"
        if kind.is_float:
            value = self.op(f"call double @PyFloat_AsDouble(ptr {self.object(position)})")
            if kind.element in {"f16", "bf16"}:  # the kernel rounds it once more
                value = rounded_to_odd(self.op, value)
            elif kind.element == "f32":
                value = self.op(f"fptrunc double {value} to float")
            return f"{kind.register} {value}"
        if kind.bytes == 8:
            return f"{kind.storage} {self.long(position)}"
        value, bits = self.integer(position), 8 * kind.bytes
        shifted = self.op(f"add i64 {value}, {1 << (bits - 1)}")
        within = self.op(f"icmp ult i64 {shifted}, {(1 << bits) + (1 << (bits - 1))}")
        self.fits = self.op(f"and i1 {self.fits}, {within}")
        return f"{kind.storage} {self.op(f'trunc i64 {value} to {kind.storage}')}"

    def pointer(self, position: int) -> str:
        """An ndarray's data, or an int."""
        item = self.object(position)
        kind = self.field(item, HEAD - 8)
        is_array = self.op(f"icmp eq ptr {kind}, %array_type")
        return self.either("ptr", is_array, lambda: self.field(item, HEAD), lambda: self.address(item))

    def field(self, item: str, offset: int) -> str:
        """A pointer in an object."""
        return self.op(f"load ptr, ptr {self.op(f'getelementptr inbounds i8, ptr {item}, i64 {offset}')}")

    def address(self, item: str) -> str:
        """An int as a pointer."""
        return self.op(
            f"inttoptr i64 {self.op(f'call i64 @PyLong_AsUnsignedLongLongMask(ptr {item})')} to ptr"
        )

    def either(self, llvm_type: str, condition: str, yes: Callable[[], str], no: Callable[[], str]) -> str:
        """One of two values, of which only that one is computed."""
        number = len(self.lines)
        self.lines.append(f"  br i1 {condition}, label %yes{number}, label %no{number}")
        values = []
        for label, compute in ((f"yes{number}", yes), (f"no{number}", no)):
            self.lines.append(f"{label}:")
            values.append(f"[{compute()}, %{label}]")
            self.lines.append(f"  br label %end{number}")
        self.lines.append(f"end{number}:")
        return self.op(f"phi {llvm_type} {', '.join(values)}")
