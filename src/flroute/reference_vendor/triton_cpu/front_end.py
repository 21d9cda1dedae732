"""Triton's front end called by itself: from a ``@triton.jit`` function to its tensor IR, for ``direct``."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import triton
from triton._C.libtriton import ir
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from flroute.reference_vendor.triton_cpu.backend import TARGET, Backend, Options, optimize
from flroute.reference_vendor.triton_cpu.scope import active

_TYPE = re.compile(r"\*?(i1|[iu](8|16|32|64)|fp(16|32|64)|bf16)")


def find(kernel: str) -> JITFunction:
    """The function that ``"package.module:function"`` names.

    Raises:
        ValueError: there is none.
    """
    module, _, name = kernel.partition(":")
    function = getattr(import_module(module), name, None)
    if not isinstance(function, JITFunction):
        raise ValueError(  # noqa: TRY004 -- a wrong name, not a wrong type
            f"kernel {kernel}: {module} has no @triton.jit function {name!r}"
        )
    return function


def tensor_ir(
    kernel: JITFunction,
    signature: Mapping[str, str],
    constants: Mapping[str, Any],
    files: Collection[Path] | None = None,
) -> str:
    """A kernel's tensor IR, optimised.

    Args:
        kernel: the function.
        signature: the type of each parameter that is not a constant.
        constants: the values of the others.
        files: all that the kernel may be made of, Triton's own apart; any if absent.

    Raises:
        ValueError: a parameter missing, unknown or of an unknown type; a function from another file.
        triton.CompilationError: Triton rejects the kernel.
    """
    label = f"{kernel.__module__}:{kernel.__name__}"
    _check(label, kernel.arg_names, signature, constants)
    kinds = {argument: signature.get(argument, "constexpr") for argument in kernel.arg_names}
    with active():
        text = _lowered(ASTSource(kernel, kinds, dict(constants)))
    if files is not None:
        _check_files(label, text, {file.resolve() for file in files})
    return text


def _check_files(kernel: str, text: str, known: Collection[Path]) -> None:
    """Tensor IR says where each operation was written: what is inlined from elsewhere comes to light."""
    tritons = Path(triton.__file__).parent
    for found in sorted(set(re.findall(r'loc\("([^"]+)":\d+', text))):
        file = Path(found).resolve()
        if file not in known and tritons not in file.parents:
            raise ValueError(
                f"kernel {kernel} uses functions of {file}, whose changes the cache would not notice: "
                "give its module's name in `sources`"
            )


def _check(
    kernel: str, parameters: list[str], signature: Mapping[str, str], constants: Mapping[str, Any]
) -> None:
    given = [*signature, *constants]
    for fault, names in (
        ("lacks", [name for name in parameters if name not in given]),
        ("does not have", [name for name in given if name not in parameters]),
        ("has both a type and a value for", [name for name in signature if name in constants]),
    ):
        if names:
            raise ValueError(
                f"kernel {kernel} {fault} {', '.join(names)}; its parameters: {', '.join(parameters)}"
            )
    for name, kind in signature.items():
        if not _TYPE.fullmatch(kind):
            raise ValueError(
                f"kernel {kernel}: {name} cannot be of type {kind!r}; types are i1, i8 to i64, u8 to u64, fp16, bf16, fp32, "
                "fp64, and * before one of them for a pointer"
            )


def _lowered(source: ASTSource) -> str:
    backend, options, context = Backend(TARGET), Options(debug=bool(source.fn.debug)), ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    generators, modules = backend.get_codegen_implementation(options), backend.get_module_map()
    return str(optimize(source.make_ir(TARGET, options, generators, modules, context)))
