"""Machine code: how it is kept on disk, what it depends on, and how it is loaded. Imports nothing of the compiler."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from flroute.reference_vendor.triton_cpu.built_in import HEAD, as_builtin, entry_name, resolve_symbols
from flroute.reference_vendor.triton_cpu.types import Type

LOCK = threading.Lock()  # LLVM's global context is shared
os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)


@dataclass(frozen=True)
class ObjectCode:
    """A compiled kernel as it is kept on disk."""

    name: str
    arguments: tuple[Type, ...]
    scratch: int
    assertions: tuple[str, ...]
    object: bytes

    def to_bytes(self) -> bytes:
        """A length, a JSON header of that length, and the object file."""
        types = [[kind.element, kind.pointee] for kind in self.arguments]
        header = json.dumps(
            {"name": self.name, "arguments": types, "scratch": self.scratch, "assertions": self.assertions}
        ).encode()
        return len(header).to_bytes(4, "little") + header + self.object

    @staticmethod
    def from_bytes(data: bytes) -> ObjectCode:
        """The reverse of ``to_bytes``."""
        end = 4 + int.from_bytes(data[:4], "little")
        header = json.loads(data[4:end])
        types = tuple(Type((), element, pointee) for element, pointee in header["arguments"])
        return ObjectCode(header["name"], types, header["scratch"], tuple(header["assertions"]), data[end:])


@cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@cache
def host() -> tuple[str, str]:
    """This CPU's name and features, as LLVM calls them."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        features["prefer-256-bit"] = (
            False  # LLVM's choice for mixed code; a kernel is one long loop over vectors
        )
    return llvm.get_host_cpu_name(), features.flatten()


@cache
def version() -> str:
    """A digest of all that machine code depends on but the kernel: this compiler's source, LLVM, the CPU, Python's objects."""
    digest = hashlib.sha256(repr((llvmlite.__version__, host(), HEAD)).encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def triton_version() -> str:
    """What tells one Triton from another, without importing it: the text of its first file, which says the version."""
    spec = find_spec("triton")
    return Path(spec.origin).read_text(encoding="utf-8") if spec is not None and spec.origin else ""


def machine() -> llvm.TargetMachine:
    """A code generator for this CPU, of the caller's own."""
    _initialize()
    cpu, features = host()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu, features=features, opt=3, jit=True
    )


class Loaded:
    """Machine code in memory; ``call`` is its entry for Python, to be used only as long as this object lives."""

    def __init__(self, code: ObjectCode) -> None:
        resolve_symbols()
        with LOCK:
            empty = llvm.parse_assembly("")
            self._engine = llvm.create_mcjit_compiler(empty, machine())
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code.object))
            self._engine.finalize_object()
            address = self._engine.get_function_address(entry_name(code.name))
        self.call, self._definition = as_builtin(address, code.name)
        self.code = code
