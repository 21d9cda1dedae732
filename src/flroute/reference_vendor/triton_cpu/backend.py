"""Triton's compilation stages for this CPU: its own tensor IR, then machine code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import triton
from triton._C.libtriton import ir, passes
from triton.backends.compiler import BaseBackend, GPUTarget, Language
from triton.language.extra.cuda import libdevice

from flroute.reference_vendor.triton_cpu.errors import UnsupportedKernelError, VersionError
from flroute.reference_vendor.triton_cpu.object_code import version

TESTED = ("3.8", "3.9")  # Triton's minor releases whose text format the reader is tested with
BACKEND = "flroute_cpu"
REFUSED = b"refused "
TARGET = GPUTarget(BACKEND, "host", 1)

if ".".join(triton.__version__.split(".")[:2]) not in TESTED:
    raise VersionError(
        f"Triton {triton.__version__} is installed; kernels are compiled for the CPU with {', '.join(TESTED)}, "
        "since the text of its tensor IR changes between releases: install one of these"
    )


@dataclass(frozen=True)
class Options:
    """What Triton's front end reads of a target; the numbers of warps and stages have no meaning here."""

    num_warps: int = 1
    num_ctas: int = 1
    num_stages: int = 1
    warp_size: int = 1
    enable_fp_fusion: bool = True
    launch_cooperative_grid: bool = False
    launch_pdl: bool = False
    extern_libs: None = None
    debug: bool = False
    sanitize_overflow: bool = False
    arch: str = "host"
    supported_fp8_dtypes: tuple[str, ...] = ()
    deprecated_fp8_dot_operand_dtypes: tuple[str, ...] = ()
    default_dot_input_precision: str = "ieee"
    allowed_dot_input_precisions: tuple[str, ...] = ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")
    max_num_imprecise_acc_default: int = 0
    backend_name: str = BACKEND
    instrumentation_mode: str = ""
    fpsan_homomorphic_casts: bool = False
    ir_override: str | None = None
    shared: int = 0
    maxnreg: int | None = None

    def hash(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()


class Backend(BaseBackend):  # type: ignore[misc]
    """Triton's compilation stages: its tensor IR, then machine code."""

    binary_ext = "obj"

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return bool(target.backend == BACKEND)

    def hash(self) -> str:
        return version()

    def parse_options(self, options: Mapping[str, Any]) -> Options:
        return Options(
            **{name: value for name, value in options.items() if name in Options.__dataclass_fields__}
        )

    def pack_metadata(self, metadata: object) -> tuple[()]:
        return ()

    def get_codegen_implementation(self, options: Options) -> dict[str, Callable[..., Any]]:
        return {"min_dot_size": lambda *_: (1, 1, 1), "convert_custom_types": lambda *_, **__: None}

    def get_module_map(self) -> dict[str, ModuleType]:
        return {"triton.language.extra.libdevice": libdevice}

    def load_dialects(self, context: object) -> None:
        """Triton's own dialects are enough."""

    def add_stages(self, stages: dict[str, Callable[..., Any]], options: Options, language: Language) -> None:
        stages["ttir"] = lambda source, _: optimize(source)
        stages["obj"] = make_object


def optimize(module: Any) -> Any:
    _inline_all(module)
    manager = ir.pass_manager(module.context)
    passes.common.add_inliner(manager)
    passes.ttir.add_rewrite_tensor_descriptor_to_pointer(manager)
    passes.common.add_canonicalizer(manager)
    passes.ttir.add_combine(manager)
    passes.ttir.add_reorder_broadcast(manager)
    passes.common.add_cse(manager)
    passes.ttir.add_triton_licm(manager)
    passes.common.add_symbol_dce(manager)
    manager.run(module, "make_ttir")
    return module


def _inline_all(module: Any) -> None:
    """Helpers declared ``noinline`` are inlined too, which changes no value: Triton has no recursion."""
    names: list[str] = []

    def note(op: Any) -> None:
        if op.get_name() == "tt.func":
            names.append(op.get_str_attr("sym_name"))

    module.walk(note)
    no = ir.builder(module.context).get_bool_attr(False)
    for name in names:
        module.get_function(name).set_attr("noinline", no)


def make_object(module: Any, metadata: dict[str, Any]) -> bytes:
    """Machine code, or why there is none.

    The error is raised when the kernel is loaded, by when Triton holds no module any more: a traceback that kept a module
    and its context alive could have both collected at once, in the wrong order.
    """
    from flroute.reference_vendor.triton_cpu.compiler import compile_ttir  # not for what is in the cache

    metadata.update(name=module.get_entry_func_name(), shared=0)
    try:
        return compile_ttir(str(module)).to_bytes()
    except UnsupportedKernelError as error:
        return REFUSED + json.dumps([error.op, error.why, error.location, error.kernel]).encode()
