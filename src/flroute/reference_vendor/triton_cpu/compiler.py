"""LLVM IR to machine code for this CPU, through llvmlite."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

from flroute.reference_vendor.triton_cpu.lowering import lower
from flroute.reference_vendor.triton_cpu.ttir import read
from flroute.reference_vendor.triton_cpu.types import Type

_LOCK = threading.Lock()  # LLVM's global context is shared


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
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def _machine() -> llvm.TargetMachine:
    _initialize()
    cpu, features = host()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu, features=features, opt=3, jit=True
    )


def compile_ttir(text: str) -> ObjectCode:
    """A Triton tensor IR module's one kernel, compiled."""
    lowered = lower(read(text))
    with _LOCK:
        machine = _machine()
        module = llvm.parse_assembly(lowered.llvm_ir)
        module.verify()
        module.triple, module.data_layout = llvm.get_default_triple(), str(machine.target_data)
        tuning = llvm.create_pipeline_tuning_options(speed_level=3)
        tuning.loop_vectorization = tuning.loop_interleaving = tuning.loop_unrolling = True
        tuning.slp_vectorization = True
        builder = llvm.create_pass_builder(machine, tuning)
        builder.getModulePassManager().run(module, builder)
        return ObjectCode(
            lowered.name, lowered.arguments, lowered.scratch, lowered.assertions, machine.emit_object(module)
        )


class Loaded:
    """Machine code in memory; ``address`` is the entry point's, valid as long as this object lives."""

    def __init__(self, code: ObjectCode) -> None:
        with _LOCK:
            empty = llvm.parse_assembly("")
            self._engine = llvm.create_mcjit_compiler(empty, _machine())
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code.object))
            self._engine.finalize_object()
            self.address: int = self._engine.get_function_address(code.name)
        self.code = code
