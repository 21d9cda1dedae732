"""Kernels: plain named functions that write the math, and what is said about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, TypeVar

import torch

from flroute.vocabulary import Precision

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__flroute_kernels__"


@dataclass(frozen=True)
class Kernel:
    """A function that computes one op, with the conditions under which it may be chosen.

    Attributes:
        op: the overload it computes, ``aten::add.Tensor``; ``aten::gelu`` names the default overload.
        function: takes the op's arguments with arrays in place of tensors and returns new arrays; for an
            op that writes to its arguments (``aten::copy_``) it writes them in place and returns nothing.
        implementation: ``numpy`` in the name ``reference/numpy:add``.
        dtypes: dtypes every tensor argument must have; empty means any.
        mixed: whether the tensor arguments may have different ones of ``dtypes``.
        min_numel: elements that the largest tensor argument must have at least, where only long ones are worth a launch.
        layouts: ``("contiguous",)`` to be chosen only when every tensor argument is; empty means any.
        when: a predicate on the op's arguments (tensors, not arrays): ``True``, ``False``, or a string
            that says why not. It may read dtype and device, shapes and strides, never data.
        precision: how exact the kernel is.
    """

    op: str
    function: Callable[..., Any]
    implementation: str = "python"
    dtypes: tuple[torch.dtype, ...] = ()
    layouts: tuple[str, ...] = ()
    when: Callable[..., bool | str] | None = None
    precision: Precision = Precision.HIGHEST
    mixed: bool = False
    min_numel: int = 0

    @property
    def name(self) -> str:
        """``numpy:add``; with the vendor before it, the kernel's full name."""
        return f"{self.implementation}:{self.function.__name__}"


@dataclass(frozen=True)
class Decomposition:
    """How an op is computed by others on a vendor's devices, where no kernel takes it; what a plugin's hook yields.

    So a vendor computes with sparse tensors, too, which no kernel takes: their indices and values are strided tensors on its
    device, and what a decomposition makes of these is routed to its kernels. Where there is none, the host computes.

    Attributes:
        op: the overload, ``aten::softshrink``. Its in-place and ``out=`` forms are ops of their own.
        function: takes the op's arguments, tensors among them, and computes by calling PyTorch: each op it calls is routed.
            ``None`` is PyTorch's own decomposition.

    Example:
        >>> from flroute.vendor import Decomposition, hookimpl
        >>> class Plugin:
        ...     @hookimpl
        ...     def flroute_decompositions(self, vendor):
        ...         yield Decomposition("aten::softshrink")
    """

    op: str
    function: Callable[..., Any] | None = None


def kernel(
    *ops: str,
    dtypes: Iterable[str] = (),
    layouts: Iterable[str] = (),
    when: Callable[..., bool | str] | None = None,
    precision: str = "highest",
    mixed: bool = False,
    min_numel: int = 0,
) -> Callable[[F], F]:
    """Mark a function as the kernel of one or more ops.

    The op's schema supplies the calling convention: a kernel of ``aten::add.Tensor`` also serves
    ``aten::add_.Tensor`` and ``aten::add.out``.

    Args:
        ops: overloads the function computes, such as ``"aten::add.Tensor"``.
        dtypes: PyTorch dtype names that every tensor argument must have, all the same one unless ``when`` judges; empty for any.
        layouts: ``("contiguous",)`` to demand row-major arguments.
        when: predicate on the op's arguments; see ``Kernel.when``.
        precision: ``"highest"``, ``"high"`` or ``"medium"``.
        mixed: whether the tensor arguments may have different ones of ``dtypes``, such as values and an index.
            Otherwise mixed dtypes are left to the host, which knows how to promote them.
        min_numel: elements that the largest tensor argument must have for the kernel to be worth its launch.

    Raises:
        ValueError: no op, an unknown dtype, layout or precision, or a negative size.

    Example:
        >>> import numpy as np
        >>> @kernel("aten::neg", dtypes=("float32",))
        ... def negate(x):
        ...     return np.negative(x)
    """
    if not all(isinstance(op, str) for op in ops):
        raise ValueError(
            "kernel() takes the ops it computes: @kernel('aten::add.Tensor'), not a bare @kernel"
        )
    if not ops:
        raise ValueError("kernel() needs the op it computes, such as 'aten::add.Tensor'")
    layouts = tuple(layouts)
    if sparse := [layout for layout in layouts if "sparse" in layout]:
        raise ValueError(
            f"kernel() takes strided tensors, not {sparse}: compute with a sparse tensor's indices and values, which are strided, "
            f"in a Decomposition of the op (hook flroute_decompositions), whose parts are routed to kernels"
        )
    if unknown := set(layouts) - {"contiguous"}:
        raise ValueError(f"kernel() knows the layout 'contiguous', not {sorted(unknown)}")
    if min_numel < 0:
        raise ValueError(f"kernel() got min_numel={min_numel}; a size is 0 or more")
    facts: dict[str, Any] = {
        "dtypes": tuple(_dtype(name) for name in dtypes),
        "layouts": layouts,
        "when": when,
        "precision": Precision(precision),
        "mixed": mixed,
        "min_numel": min_numel,
    }

    def mark(function: F) -> F:
        kernels = [Kernel(op=op, function=function, **facts) for op in ops]
        setattr(function, _MARK, [*getattr(function, _MARK, ()), *kernels])
        return function

    return mark


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(  # noqa: TRY004 -- a wrong name, not a wrong type
            f"kernel() got the dtype {name!r}; PyTorch has no torch.{name}"
        )
    return dtype


def collect_kernels(*modules: ModuleType, implementation: str) -> tuple[Kernel, ...]:
    """All kernels marked in ``modules``, in the order of definition.

    Args:
        modules: modules whose own functions were marked with ``kernel``.
        implementation: the word between vendor and function in a kernel's name.
    """
    return tuple(
        replace(found, implementation=implementation)
        for module in modules
        for function in vars(module).values()
        if getattr(function, "__module__", None) == module.__name__
        for found in getattr(function, _MARK, ())
    )
