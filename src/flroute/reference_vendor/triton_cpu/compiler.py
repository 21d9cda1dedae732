"""Triton's tensor IR to machine code for this CPU, through llvmlite."""

from __future__ import annotations

import re

import llvmlite.binding as llvm

from flroute.reference_vendor.triton_cpu.errors import UnsupportedKernelError
from flroute.reference_vendor.triton_cpu.lowering import lower
from flroute.reference_vendor.triton_cpu.object_code import LOCK, ObjectCode, machine
from flroute.reference_vendor.triton_cpu.python_entry import python_entry
from flroute.reference_vendor.triton_cpu.ttir import read


def compile_ttir(text: str) -> ObjectCode:
    """A Triton tensor IR module's one kernel, compiled.

    Raises:
        UnsupportedKernelError: it uses what is not lowered; the message names the kernel and the line.
    """
    try:
        lowered = lower(read(text))
    except UnsupportedKernelError as error:
        found = re.search(r"tt\.func public @(\w+)", text)
        raise UnsupportedKernelError(error.op, error.why, error.location, found[1] if found else "") from None
    entry = python_entry(
        lowered.name, lowered.arguments, asserts=bool(lowered.assertions), scratch=lowered.scratch
    )
    with LOCK:
        target = machine()
        module = llvm.parse_assembly(lowered.llvm_ir + entry)
        module.verify()
        module.triple, module.data_layout = llvm.get_default_triple(), str(target.target_data)
        tuning = llvm.create_pipeline_tuning_options(speed_level=3)
        tuning.loop_vectorization = tuning.loop_interleaving = tuning.loop_unrolling = True
        tuning.slp_vectorization = True
        builder = llvm.create_pass_builder(target, tuning)
        builder.getModulePassManager().run(module, builder)
        return ObjectCode(
            lowered.name, lowered.arguments, lowered.scratch, lowered.assertions, target.emit_object(module)
        )
