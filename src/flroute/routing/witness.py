"""Finding host work that kernels do in secret.

A kernel that wraps its arrays in host tensors and lets PyTorch compute is a fallback that nobody sees. While a watched
kernel runs, every aten call it makes in its own thread is seen; those that compute on host tensors are accounted for, or
refused, as if the kernel had asked through ``host_fallback``. What numpy does is the kernel's own business.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from flroute.routing.fallback import InKernel
from flroute.routing.schema import facts_of, tensors_in
from flroute.torch_compat import TorchDispatchMode, is_overload

_COMPUTES_NOTHING = frozenset(
    {
        "aten::_local_scalar_dense",
        "aten::empty_like",
        "aten::lift_fresh",
        "aten::new_empty",
        "aten::new_empty_strided",
        "aten::set_.source_Storage_storage_offset",
    }
)
"""Reads a number, makes room, or says what a tensor is: no work."""


class _Witness(TorchDispatchMode):
    def __init__(self, account: InKernel) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._account = account

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = tensors_in(args, kwargs)
        if not _computes(func) or all(tensor.device.type != "cpu" for tensor in tensors):
            return func(*args, **kwargs)
        return self._account(func.name(), tensors, lambda: func(*args, **kwargs))


def _computes(func: Any) -> bool:
    """Whether a call is work: not a view, and not a draw from the host's generator, which is the device's, too."""
    if not is_overload(func) or func.namespace != "aten":
        return False
    facts = facts_of(func)
    return not (facts.is_metadata or facts.is_seeded or facts.name in _COMPUTES_NOTHING)


def watched(function: Callable[..., Any], account: InKernel) -> Callable[..., Any]:
    """The kernel's function, with every host computation it makes accounted for.

    Args:
        function: of the kernel.
        account: as for ``host_fallback``.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _Witness(account):
            return function(*args, **kwargs)

    return run
