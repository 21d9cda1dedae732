"""Ops: which there are, what PyTorch has for them, and its own implementations of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from flroute.errors import CompatibilityError

DispatchKey = torch._C.DispatchKey
DispatchKeySet = torch._C.DispatchKeySet
HOST_KEYS = DispatchKeySet(DispatchKey.CPU)
all_op_names = torch._C._dispatch_get_all_op_names


def has_kernel(op_name: str, key: str) -> bool:
    """Whether PyTorch has a kernel for ``op_name`` registered at exactly this dispatch key (an alias key counts as itself)."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op_name, key))


def find_op(name: str) -> Any | None:
    """The overload ``aten::add.Tensor`` names (no dot: the default one), or ``None`` if this PyTorch lacks it."""
    namespace, _, rest = name.partition("::")
    packet_name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), packet_name, None)
    return getattr(packet, overload or "default", None)


def overloads_of(name: str) -> list[str]:
    """Full names of all overloads of the packet ``aten::add`` names."""
    namespace, _, rest = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), rest.partition(".")[0], None)
    return [] if packet is None else [getattr(packet, o).name() for o in packet.overloads()]


def schema_of(op: Any) -> Any:
    """The schema of an overload: its name, arguments and returns."""
    return op._schema


def is_overload(func: Any) -> bool:
    """Whether ``func`` is an ``OpOverload`` (not a higher-order operator)."""
    return isinstance(func, torch._ops.OpOverload)


_LAZY_KEYS = (DispatchKey.Conjugate, DispatchKey.Negative, DispatchKey.ZeroTensor)


def resolving_lazy_bits() -> Any:
    """A context in which PyTorch resolves lazy conj and neg views again.

    A dispatch mode runs with every key above Python excluded (``pythonFallback``, PythonFallbackKernel.cpp), these among
    them: a composite that conjugates on the way would hand its next op a view whose bit nobody sees.
    """
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in _LAZY_KEYS:
        excluded = excluded.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


def run_composite(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run PyTorch's own composite implementation of ``op``, whose parts are dispatched anew."""
    with resolving_lazy_bits():
        return op._op_dk(_composite_key(op), *args, **kwargs)


@cache
def _composite_key(op: Any) -> Any:
    """Where PyTorch has its composite implementation of ``op``: to look for it takes longer than a small op."""
    for key in _COMPOSITE_KEYS:
        if has_kernel(op.name(), key.name):
            return key
    raise CompatibilityError(f"PyTorch {torch.__version__} has no composite implementation of {op.name()}")


_COMPOSITE_KEYS = (
    DispatchKey.CompositeImplicitAutograd,
    DispatchKey.CompositeExplicitAutogradNonFunctional,
    DispatchKey.CompositeExplicitAutograd,
)


def boxed_redispatch(op: Any) -> Callable[..., Any]:
    """``op.redispatch`` without its Python wrapper: takes a key set, then the op's arguments."""
    return op._handle.redispatch_boxed  # type: ignore[no-any-return]


_AUTOCAST_HOST = DispatchKeySet(DispatchKey.AutocastCPU)


def without_host_autocast() -> Any:
    """A context in which ``torch.autocast("cpu")`` does not act: host work done for a device op keeps its dtypes."""
    return torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_HOST)


def run_decomposition(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a function of tensors in the place of an op; what it calls is dispatched anew."""
    with resolving_lazy_bits():
        return function(*args, **kwargs)


def decomposition_of(op: Any) -> Callable[..., Any] | None:
    """PyTorch's own way to compute ``op`` by other ops, which its compiler uses; most ops have none."""
    from torch._decomp import decomposition_table

    return decomposition_table.get(op)


def implementation_in_aten(op: Any) -> Callable[..., Any] | None:
    """What computes one of the ops (``prims::``) that PyTorch's decompositions are written in; ``None`` if it is none of them."""
    return getattr(op, "impl_aten", None)


def flops_of(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Floating-point operations of a call: PyTorch's formula where it has one, else one per element of the results."""
    from torch.utils.flop_counter import flop_registry

    formula = flop_registry.get(op._overloadpacket)
    if formula is not None:
        return int(formula(*args, **kwargs, out_val=result))
    results = result if isinstance(result, tuple | list) else (result,)
    return sum(r.numel() for r in results if isinstance(r, torch.Tensor))
