"""Launches kernels of ``sources`` on arrays, compiled for their types when first called with them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from flroute.reference_vendor.compiled.sizes import MIN_NUMEL
from flroute.reference_vendor.triton_cpu import TritonCpuError, direct
from flroute.vendor import Unsupported, kernel

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

ALL_FLOATS = ("float32", "float64", "float16", "bfloat16")
SOURCES = "flroute.reference_vendor.compiled.sources"
_POINTERS = {"f": "*fp32", "d": "*fp64", "e": "*fp16", "H": "*bf16", "i": "*i32", "l": "*i64", "?": "*i1"}
"""Triton's name of an array's type, by numpy's character; bfloat16 comes as the 16-bit integers it is made of."""


def compiled_kernel(
    *ops: str,
    size: str,
    dtypes: tuple[str, ...] = ALL_FLOATS,
    when: Callable[..., bool | str] | None = None,
    mixed: bool = False,
) -> Callable[..., Any]:
    """Mark a function that launches a compiled kernel: for contiguous tensors from ``MIN_NUMEL[size]`` elements on."""
    return kernel(
        *ops, dtypes=dtypes, layouts=("contiguous",), min_numel=MIN_NUMEL[size], when=when, mixed=mixed
    )


def wide_type(x: Array) -> np.dtype[Any]:
    """The type that half precision is computed in, or the array's own."""
    return np.dtype("d" if x.dtype.char == "d" else "f")


def ceil_div(a: int, b: int) -> int:
    """How many blocks of ``b`` it takes to hold ``a``."""
    return -(-a // b)


def block_of(n: int) -> int:
    """The least power of two that holds ``n``."""
    return 1 << max(n - 1, 1).bit_length()


class Source:
    """One file of kernels.

    Args:
        name: of the module in ``sources``.
        uses: modules in ``sources`` whose functions its kernels call.
    """

    def __init__(self, name: str, *uses: str) -> None:
        self._module = f"{SOURCES}.{name}"
        self._uses = tuple(f"{SOURCES}.{other}" for other in uses)
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def launch(self, kernel: str, programs: int, *arguments: Array | float, **constants: int) -> None:
        """Run a kernel.

        Args:
            kernel: its name.
            programs: how many programs the grid has.
            arguments: for the parameters that are not constants, in order; arrays are contiguous.
            constants: for the others.

        Raises:
            Unsupported: it cannot be compiled here; nothing was written.
        """
        kinds = [a.dtype.char if a.__class__ is np.ndarray else a.__class__ for a in arguments]
        key = (kernel, *kinds, *constants.values())
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = self._compile(kernel, kinds, constants)
        compiled(programs, *arguments)

    def _compile(self, kernel: str, kinds: list[Any], constants: dict[str, int]) -> Any:
        wide = "fp64" if "d" in kinds else "fp32"
        types = [_POINTERS.get(kind) or ("i64" if kind is int else wide) for kind in kinds]
        names = [name for name in self._parameters[kernel] if name not in constants]
        signature = dict(zip(names, types, strict=True))
        try:
            return direct.load(f"{self._module}:{kernel}", signature, constants, sources=self._uses)
        except TritonCpuError as error:
            raise Unsupported(f"{kernel} cannot be compiled: {error}") from error

    @cached_property
    def _parameters(self) -> dict[str, list[str]]:
        """The parameters of each kernel, read without importing Triton."""
        spec = find_spec(self._module)
        if spec is None or spec.origin is None:
            raise ImportError(f"there is no {self._module}")
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        return {
            node.name: [argument.arg for argument in node.args.args]
            for node in tree.body
            if isinstance(node, ast.FunctionDef)
        }
