"""Where PyTorch's dispatcher meets the router: kernels at the PrivateUse1 key for whatever no mode has taken.

One boxed fallback would do, but for the exceptions below; each is a case where PyTorch does not reach a boxed fallback,
or reaches it with less than the whole op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flroute.routing import attention, composites
from flroute.routing.refused import NESTED_METADATA, refuse_nested, refuse_quantized
from flroute.torch_compat import all_op_names, find_op, has_kernel

aten = torch.ops.aten

Route = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

_KEY = "PrivateUse1"

_REACHED_WITHOUT_PYTHON = (
    "aten::empty.memory_format",
    "aten::empty_strided",
    "aten::_copy_from",
    "aten::_copy_from_and_resize",
    "aten::_local_scalar_dense",
    "aten::as_strided",
    "aten::view",
    "aten::view.dtype",
    "aten::_reshape_alias",
    "aten::unfold",
    "aten::view_as_real",
    "aten::view_as_complex",
    "aten::set_.source_Storage_storage_offset",
    "aten::set_.source_Storage",
    "aten::set_.source_Tensor",
    "aten::set_",
    "aten::resize_",
    "aten::record_stream",
    "aten::_to_copy",  # PyTorch's own asks for pinned host memory when told not to block
    "aten::mode.values",  # its composite names the devices it accepts
    "aten::conj_physical_",  # its composite calls the host's kernel without asking the dispatcher
)
"""``torch.tensor(..., device="fl")``, some indexing and FSDP1 reach the device with the Python key excluded while a dispatch mode
is on the stack; PyTorch then finds only kernels registered by name, and asserts on a boxed fallback (PythonFallbackKernel.cpp)."""

_COMPOSITES = (
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
    "CompositeImplicitAutograd",
)

_SPARSE = {"SparsePrivateUse1": "SparseCPU", "SparseCsrPrivateUse1": "SparseCsrCPU"}
"""Where calls on sparse tensors arrive, by the key of the host's own."""

_libraries: list[torch.library.Library] = []


def register(route: Route) -> None:
    """Send every op that reaches the device to ``route(op, args, kwargs)``."""
    anything = torch.library.Library("_", "IMPL")
    anything.fallback(lambda op, *args, **kwargs: route(op, args, kwargs), _KEY)
    anything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    named = torch.library.Library("aten", "IMPL")
    _libraries.extend((anything, named))
    for name in dict.fromkeys((*_REACHED_WITHOUT_PYTHON, *_ops_taken_whole())):
        named.impl(name.removeprefix("aten::"), _routed(route, find_op(name)), _KEY)
    _register_convolution(named, route)
    for name in composites.PARTS:
        named.impl(name.removeprefix("aten::"), _routed(route, find_op(name)), _KEY)
    named.impl("scaled_dot_product_attention", attention.attention, f"Autograd{_KEY}")
    for key, host_key in _SPARSE.items():
        anything.fallback(lambda op, *args, **kwargs: route(op, args, kwargs), key)
        for name in _ops_taken_whole(host_key):
            named.impl(name.removeprefix("aten::"), _routed(route, find_op(name)), key)
    anything.fallback(lambda op, *_, **__: refuse_nested(op.name()), f"NestedTensor{_KEY}")
    for name, function in NESTED_METADATA.items():
        named.impl(name, function, f"NestedTensor{_KEY}")
    named.impl("_to_copy", lambda *_, **__: refuse_nested("aten::_to_copy"), f"NestedTensor{_KEY}")
    anything.fallback(lambda op, *_, **__: refuse_quantized(op.name()), f"Quantized{_KEY}")
    for key in (
        "Conjugate",
        "Negative",
    ):  # a copy resolves the lazy bit itself; resolving first would copy, for ever
        named.impl("_copy_from", torch.library.fallthrough_kernel, key)


def _routed(route: Route, op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: route(op, args, kwargs)


def _ops_taken_whole(host_key: str = "CPU") -> list[str]:
    """Ops with a host kernel for which PrivateUse1 would get PyTorch's composite.

    Never ``detach`` or ``alias``, which have no host kernel: ``nn.Parameter(t)`` and ``as_subclass`` call them in C++ and give the
    result a Python half of their own, and what a Python kernel returns already has one.

    ``native_group_norm``'s composite demands a viewable input; a structured functional op would arrive as ``empty`` and
    ``out=``.
    """
    return [
        name
        for name in all_op_names()
        if name.startswith("aten::")
        and has_kernel(name, host_key)
        and any(has_kernel(name, key) for key in _COMPOSITES)
    ]


def _register_convolution(library: torch.library.Library, route: Route) -> None:
    """PyTorch picks the ``overrideable`` forms for a device it does not know (ConvUtils.h); they are the op itself."""

    def forward(*args: Any) -> Any:
        return route(aten.convolution.default, args, {})

    def backward(grad: Any, x: Any, weight: Any, *rest: Any) -> Any:
        return route(aten.convolution_backward.default, (grad, x, weight, None, *rest), {})

    library.impl("convolution_overrideable", forward, _KEY)
    library.impl("convolution_backward_overrideable", backward, _KEY)
